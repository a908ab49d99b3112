"""The part of KVTop that runs in SGLang's processes; the rest never imports it."""
