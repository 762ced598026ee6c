"""Meeting of workers that come and go: round after round, whoever is there, over a store that outlives them."""

from __future__ import annotations

import contextlib
import datetime
import time

import torch.distributed as dist

from grace.errors import AbsentError, ConfigurationError
from grace.transports.torch_distributed import TorchDistributed

_POLL = 0.02


class Rounds:
    """Meets others, and again when the group has broken, or when someone waits.

    Args:
        store: one that all of them reach and that none of them keeps: a ``TCPStore`` of the launcher, or a ``FileStore``.
        least: with fewer no round begins, more than half of ``most``: else the halves of a split network would go on apart,
            each with a model of its own.
        most: a round begins at once when so many are there; others wait for the next one.
        patience: seconds after the last one came before a round begins with fewer. Who is silent for four times as long, and
            two seconds, has died.
        seconds: how long to wait for a round to begin.
        timeout: of a round's process group, in seconds: so long do the others wait if one dies while connections are made.
        backend: of the process group.

    Raises:
        ConfigurationError: ``least`` is not more than half of ``most``.

    Each round has a default process group of its own: whatever else used the one before it must begin anew.
    """

    def __init__(
        self,
        store: dist.Store,
        least: int,
        most: int,
        *,
        patience: float = 1.0,
        seconds: float = 60.0,
        timeout: float = 60.0,
        backend: str = "gloo",
    ):
        if not 1 <= least <= most:
            raise ConfigurationError(f"least={least}, most={most}: legal: 1 <= least <= most")
        if 2 * least <= most:
            raise ConfigurationError(
                f"least={least}, most={most}: if the network splits, two rounds of {least} could begin, and train on apart, "
                f"each with a model of its own; legal: least > most / 2, here {most // 2 + 1} or more"
            )
        self._store = dist.PrefixStore("grace/rounds", store)
        self._least, self._most, self._patience, self._seconds = least, most, patience, seconds
        self._timeout = datetime.timedelta(seconds=timeout)
        self._silence = max(2.0, 4 * patience)
        self._backend = backend
        self._number: int | None = None

    def meet(self) -> TorchDistributed:
        """A transport between those who have come.

        Raises:
            AbsentError: too few have come in time.
        """
        deadline = time.monotonic() + self._seconds
        if self._number is None:
            self._number = int(self._store.get("latest")) if self._store.check(["latest"]) else 0
        while time.monotonic() < deadline:
            self._number += 1  # also after a failure: this round is over
            place = self._store.add(f"{self._number}/came", 1)
            count = self._begin(deadline) if place == 1 else self._wait()
            if count is None or place > count or not self._all_here(count):
                continue
            with contextlib.suppress(RuntimeError, ValueError):  # one has died since
                self._form(place - 1, count)
                return TorchDistributed.of_same_ranks()
            deadline = time.monotonic() + self._seconds
        raise AbsentError([], f"no round began within {self._seconds:.0f} s with {self._least} workers or more")

    def waiting(self) -> bool:
        """True if someone waits for the next round."""
        return self._number is not None and int(self._store.add(f"{self._number + 1}/came", 0)) > 0

    def _begin(self, deadline: float) -> int | None:
        """The first of a round decides when it begins, and shows that it lives."""
        assert self._number is not None
        number, came, since = self._number, 1, time.monotonic()
        while came < self._most and not (came >= self._least and time.monotonic() - since > self._patience):
            if time.monotonic() > deadline or int(self._store.add(f"{number + 1}/came", 0)):
                self._store.set(f"{number}/begins", "0")  # others are further: all go there
                return None
            self._store.add(f"{number}/beats", 1)
            time.sleep(_POLL)
            now = int(self._store.add(f"{number}/came", 0))
            if now != came:
                came, since = now, time.monotonic()
        came = min(came, self._most)
        self._store.set("latest", str(number))
        self._store.set(f"{number}/begins", str(came))
        return came

    def _wait(self) -> int | None:
        """Number of workers of a round, once it begins; None if its first one is silent."""
        begins, beats, since = f"{self._number}/begins", 0, time.monotonic()
        while not self._store.check([begins]):
            time.sleep(_POLL)
            now = int(self._store.add(f"{self._number}/beats", 0))
            if now != beats:
                beats, since = now, time.monotonic()
            elif time.monotonic() - since > self._silence:
                return None
        return int(self._store.get(begins))

    def _all_here(self, count: int) -> bool:
        """True if all who came are still there when the round begins. All of them say the same: one that would go on alone
        waits for the others' connections in vain, and is missed in the next round meanwhile.
        """
        here, verdict, until = f"{self._number}/here", f"{self._number}/verdict", time.monotonic() + self._silence
        self._store.add(here, 1)
        while not self._store.check([verdict]):
            complete = int(self._store.add(here, 0)) >= count
            if complete or time.monotonic() > until:
                if self._store.add(f"{self._number}/decides", 1) == 1:
                    self._store.set(verdict, str(int(complete)))
                elif time.monotonic() > until + self._silence:  # who was to say it has died
                    return False
            time.sleep(_POLL)
        return self._store.get(verdict) == b"1"

    def _form(self, rank: int, world: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        TorchDistributed.forget()
        dist.init_process_group(
            self._backend,
            store=dist.PrefixStore(f"group/{self._number}", self._store),
            rank=rank,
            world_size=world,
            timeout=self._timeout,
        )
