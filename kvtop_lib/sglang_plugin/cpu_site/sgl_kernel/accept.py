"""What verification keeps: the accepted path, its slots, the bonus token, the shifted ids."""

import numpy as np
import torch

from .ragged import ragged_rows


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk every tree along the target's own greedy choice.

    From the root, the first child whose token is what the target predicts at the current node
    is accepted, until no child matches or ``accept_index`` is full. The prediction at the last
    accepted node is the bonus token.

    Parameters
    ----------
    predicts : [bs * n] int32, changed in place at the accepted nodes only
    accept_index : [bs, depth + 1] int32 preset to -1, changed in place: accepted nodes
    accept_token_num : [bs] int32, changed in place: accepted drafts without the bonus token
    candidates : [bs, n] token of every node
    retrive_* : [bs, n] links (see `trees`)
    target_predict : [bs, n] the target's argmax at every node
    """
    bs, n = candidates.shape
    batch, predicted = np.arange(bs), target_predict.numpy().ravel()
    tokens, place = candidates.numpy(), retrive_index.numpy()
    child, sibling = retrive_next_token.numpy(), retrive_next_sibling.numpy()
    out, index = predicts.numpy(), accept_index.numpy()
    last = place[:, 0].copy()  # the last accepted node, flattened over the batch
    accepted = np.zeros(bs, dtype=np.int64)
    index[:, 0] = last
    node = child[:, 0]
    # A walk visits each node at most once, whether it descends or moves to a sibling.
    for _ in range(n - 1):
        live = (node >= 0) & (accepted < index.shape[1] - 1)
        if not live.any():
            break
        match = live & (tokens[batch, node] == predicted[last])
        out[last[match]] = predicted[last[match]]
        accepted += match
        last = np.where(match, place[batch, node], last)
        index[batch[match], accepted[match]] = last[match]
        step = np.where(match, child[batch, node], sibling[batch, node])
        node = np.where(live, step, -1)
    accept_token_num.numpy()[:] = accepted
    out[last] = predicted[last]


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
    accept_stride: int,
) -> None:
    """The last accepted token of every request.

    Parameters
    ----------
    accept_tokens : [bs * accept_stride]
    accept_lens : [bs] accepted tokens, bonus included
    bonus_tokens : [bs], changed in place
    """
    lengths = accept_lens.numpy()
    at = np.arange(len(lengths)) * accept_stride + lengths - 1
    bonus_tokens.numpy()[:] = accept_tokens.numpy().ravel()[at]


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor,
    out_cache_loc: torch.Tensor,
    accept_out_cache_loc: torch.Tensor,
) -> None:
    """Slots of the accepted nodes, packed to the front; the rest is left as it is.

    Parameters
    ----------
    accept_index : any shape, -1 where nothing was accepted
    out_cache_loc : [bs * n] slot of every node
    accept_out_cache_loc : changed in place
    """
    kept = accept_index.numpy().ravel()
    kept = kept[kept >= 0]
    accept_out_cache_loc.numpy()[: len(kept)] = out_cache_loc.numpy()[kept]


def rotate_input_ids_cpu(
    input_ids: torch.Tensor,
    extend_start_loc: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    topk_index: torch.Tensor,
    select_index: torch.Tensor | None = None,
) -> None:
    """Shift every request's ids left by one and put its new token at the end.

    Parameters
    ----------
    input_ids : [sum(extend_seq_lens)], changed in place
    extend_start_loc, extend_seq_lens : [bs]
    topk_index : [bs] (or [bs, 1]) new token
    select_index : [bs] or None
        Where the new token goes instead of the request's last place. Empty requests
        take none.
    """
    ids, starts, lengths = input_ids.numpy(), extend_start_loc.numpy(), extend_seq_lens.numpy()
    row, offset = ragged_rows(np.maximum(lengths - 1, 0))
    at = starts[row] + offset
    ids[at] = ids[at + 1]
    last = starts + lengths - 1 if select_index is None else select_index.numpy()
    full = lengths > 0
    ids[last[full]] = topk_index.numpy().ravel()[full]
