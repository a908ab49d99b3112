"""What a server understands beyond the OpenAI interface, found out once before a point.

SGLang and vLLM send cumulative token counts with every event when asked
(``continuous_usage_stats``), llama.cpp does with ``timings_per_token``; SGLang adds counters of
drafting (``return_spec_tokens_details``). A strict server answers an unknown field with HTTP 400:
such fields are left out then, and the records say which.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

Api = Literal["chat", "completions"]
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
EXTRAS = ("return_spec_tokens_details", "timings_per_token", "continuous_usage_stats", "usage")
REFUSED = (400, 422)
ASK_S = 10.0
"""Longest wait for a page that tells who the server is."""


@dataclass(frozen=True)
class Dialect:
    """Fields that requests carry.

    ``server`` is ``sglang``, ``llama.cpp`` or ``other``; ``refused`` are the fields that it did
    not take.
    """

    api: Api = "chat"
    server: str = "sglang"
    extras: tuple[str, ...] = ("return_spec_tokens_details", "continuous_usage_stats", "usage")
    refused: tuple[str, ...] = ()

    @property
    def path(self) -> str:
        """Route of the requests."""
        return PATHS[self.api]

    def fields(self) -> dict:
        """The extra fields of a request's body."""
        found: dict = {}
        if "usage" in self.extras:
            found["stream_options"] = {"include_usage": True}
            if "continuous_usage_stats" in self.extras:
                found["stream_options"]["continuous_usage_stats"] = True
        for name in ("return_spec_tokens_details", "timings_per_token"):
            if name in self.extras:
                found[name] = True
        return found

    def only(self, extras: tuple[str, ...]) -> Dialect:
        """The dialect when the server takes no more than these of its fields."""
        refused = tuple(e for e in self.extras if e not in extras)
        return replace(self, extras=tuple(e for e in self.extras if e in extras), refused=refused)

    def as_dict(self) -> dict:
        """For the records."""
        return asdict(self)


SGLANG = Dialect()


async def learn(client, url: str, model: str, api: Api = "chat") -> Dialect:
    """Find out which fields the server takes, and make the client's requests carry them.

    SGLang is known by its ``/model_info`` and takes them all, so that it is asked for nothing
    that would enter its caches or counters. Another server gets a request for one token; when it
    refuses that, one without any of the fields, and one for every field. When it refuses the
    plain request too, the fields are not the reason and all of them stay.

    Parameters
    ----------
    client
        `kvtop_lib.replay.client.Client`; its ``dialect`` is set.
    url
        ``http://host:port``.
    """
    client.dialect = found = await _recognise(client, url, api)
    if found.server == "sglang":
        return found
    try:
        if await _takes(client, url, model, found):
            return found
        if not await _takes(client, url, model, found.only(())):
            return found
        taken: tuple[str, ...] = ()
        for name in reversed(found.extras):
            more = (*taken, name)
            fits = name != "continuous_usage_stats" or "usage" in taken  # a part of its object
            taken = more if fits and await _takes(client, url, model, found.only(more)) else taken
        client.dialect = found.only(taken)
    except OSError:
        pass  # the traffic will tell what is wrong
    return client.dialect


async def _takes(client, url: str, model: str, dialect: Dialect) -> bool:
    data = _one_token(model, dialect)
    status, _ = await client.post(url + dialect.path, data, client.timeout_s)
    return status not in REFUSED


async def _recognise(client, url: str, api: Api) -> Dialect:
    try:
        status, body = await client.get(url + "/model_info", ASK_S)
        if status == 200 and "model_path" in json.loads(body):
            return Dialect(api)
    except OSError:
        return Dialect(api)  # nobody answers: the traffic will tell
    except (ValueError, TypeError, RecursionError):
        pass
    extras = SGLANG.extras
    try:
        status, body = await client.get(url + "/props", ASK_S)
        if status == 200 and "total_slots" in json.loads(body):
            return Dialect(api, "llama.cpp", ("timings_per_token", *extras[1:]))
    except (OSError, ValueError, TypeError, RecursionError):
        pass
    return Dialect(api, "other", extras)


def _one_token(model: str, dialect: Dialect) -> bytes:
    asked = {"messages": [{"role": "user", "content": "."}]} if dialect.api == "chat" else {}
    asked = asked or {"prompt": "."}
    fields = {"model": model, **asked, "max_tokens": 1, "temperature": 0.0, "stream": True}
    return json.dumps(fields | dialect.fields()).encode()
