"""Bodies of requests, made before their time on a thread of their own.

Text of token blocks and JSON of long histories take milliseconds. On the event loop they would
delay the stamps of every stream, and a lane would start to write when it should send.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor

from kvtop_lib.replay.dialect import Dialect
from kvtop_lib.replay.plan import Plan
from kvtop_lib.replay.request import body
from kvtop_lib.trace.model import Session


class Bodies:
    """Makes each body once, in the order of asking; a context manager.

    One thread: writers of text keep what they have made and are used by one thread at a time.
    """

    def __init__(self, model: str, plan: Plan, dialect: Dialect) -> None:
        self._model, self._plan, self._dialect = model, plan, dialect
        self._asked: dict[tuple[str, int], Future[bytes]] = {}
        self._thread = ThreadPoolExecutor(1, "kvtop-bodies")

    def __enter__(self) -> Bodies:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def ahead(self, session: Session, k: int) -> None:
        """Have the body of turn ``k`` made, if there is such a turn."""
        if k < len(session.turns) and (session.id, k) not in self._asked:
            self._asked[session.id, k] = self._thread.submit(self._make, session, k)

    async def ready(self) -> None:
        """Wait for all that was asked for; raises what went wrong with one."""
        await asyncio.gather(*map(asyncio.wrap_future, self._asked.values()))

    async def take(self, session: Session, k: int) -> bytes:
        """The body of turn ``k``, which is not kept."""
        self.ahead(session, k)
        asked = self._asked.pop((session.id, k))
        return asked.result() if asked.done() else await asyncio.wrap_future(asked)

    def drop(self, session: Session, k: int) -> None:
        """Forget a body that will not be sent."""
        if asked := self._asked.pop((session.id, k), None):
            asked.cancel()

    def _make(self, session: Session, k: int) -> bytes:
        messages, output_tokens = session.request_messages(k), session.turns[k].output_tokens
        return body(self._model, messages, self._plan, output_tokens, self._dialect)
