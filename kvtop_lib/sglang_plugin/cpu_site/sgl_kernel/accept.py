"""What verification keeps: the accepted path, its slots, the bonus token, the shifted ids."""

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
    batch = torch.arange(bs)
    predicted = target_predict.flatten()
    last = retrive_index[:, 0].clone()  # the last accepted node, flattened over the batch
    accepted = torch.zeros(bs, dtype=torch.int64)
    accept_index[:, 0] = last.to(accept_index.dtype)
    node = retrive_next_token[:, 0]
    # A walk visits each node at most once, whether it descends or moves to a sibling.
    for _ in range(n - 1):
        live = (node >= 0) & (accepted < accept_index.shape[1] - 1)
        if not bool(live.any()):
            break
        at = node.clamp(min=0)
        match = live & (candidates[batch, at] == predicted[last])
        predicts[last[match]] = predicted[last[match]].to(predicts.dtype)
        accepted += match
        last = torch.where(match, retrive_index[batch, at], last)
        accept_index[batch[match], accepted[match]] = last[match].to(accept_index.dtype)
        step = torch.where(match, retrive_next_token[batch, at], retrive_next_sibling[batch, at])
        node = torch.where(live, step, -1)
    accept_token_num.copy_(accepted)
    predicts[last] = predicted[last].to(predicts.dtype)


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
    at = torch.arange(accept_lens.numel()) * accept_stride + accept_lens - 1
    bonus_tokens.copy_(accept_tokens.flatten()[at])


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
    kept = accept_index.flatten()
    kept = kept[kept >= 0]
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept]


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
    starts, lengths = extend_start_loc.to(torch.int64), extend_seq_lens.to(torch.int64)
    row, offset = ragged_rows((lengths - 1).clamp(min=0))
    at = starts[row] + offset
    input_ids[at] = input_ids[at + 1]
    last = starts + lengths - 1 if select_index is None else select_index.to(torch.int64)
    full = lengths > 0
    input_ids[last[full]] = topk_index.flatten()[full].to(input_ids.dtype)
