"""SGLang's classes of the embedded models and of their draft layers."""

from sglang.srt.models.glm4_moe import Glm4MoeForCausalLM
from sglang.srt.models.glm4_moe_nextn import Glm4MoeForCausalLMNextN
from sglang.srt.models.llama import LlamaForCausalLM
from sglang.srt.models.llama_eagle import LlamaForCausalLMEagle

EntryClass = [
    LlamaForCausalLM, LlamaForCausalLMEagle, Glm4MoeForCausalLM, Glm4MoeForCausalLMNextN,
]  # fmt: skip
