"""The n-gram drafts of a running batch: one suffix index per request, as long as it lives."""

import weakref
from collections.abc import Sequence

from .suffix import index_class


class Lookup:
    """Indices of the running requests, fed with what is new since the last iteration.

    Parameters
    ----------
    min_match : tokens that must have occurred before, at least.
    """

    def __init__(self, min_match: int, kind: type | None = None) -> None:
        self._min_match = min_match
        self._kind = kind or index_class()
        self._indices: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self._indices)

    @property
    def tokens_per_iteration(self) -> int:
        """Tokens read at most in one call of `propose`, all requests together."""
        return self._kind.TOKENS_PER_ITERATION

    def propose(self, requests: Sequence, depth: int) -> list[list[int]]:
        """Drafts of `depth` tokens per request; an empty list where nothing matches.

        A long prompt is read over several iterations and matches only when it has been read.
        """
        budget, found = self.tokens_per_iteration, []
        for request in requests:
            prompt, output = request.origin_input_ids_unpadded, request.output_ids
            total = len(prompt) + len(output)
            index = self._indices.get(request)
            if index is None or index.tokens > total:  # a retracted request may start anew
                self._indices.pop(request, None)
                if not budget:  # to make one takes time, too
                    found.append([])
                    continue
                expected = len(prompt) + request.sampling_params.max_new_tokens
                index = self._kind(self._min_match, expected_tokens=expected)
                self._indices[request] = index
            if index.tokens < len(prompt):
                new = prompt[index.tokens : index.tokens + budget]
                index.extend(new)
                budget -= len(new)
            if index.tokens >= len(prompt) and index.tokens < total:
                start = index.tokens - len(prompt)
                new = output[start : start + max(budget, 64)]  # an answer grows by a few
                index.extend(new)
                budget -= len(new)
            budget = max(budget, 0)
            found.append(index.propose(depth)[1] if index.tokens == total and depth else [])
        return found
