"""Messages as bytes: MessagePack, whose types are checked; nothing that a stranger sends is run."""

from __future__ import annotations

from typing import Any

import msgspec

from grace.decoupled.messages import (
    Contribution,
    FromLearner,
    FromSyncer,
    Goodbye,
    Hello,
    Progress,
    Pull,
    Refusal,
    Seed,
    Update,
    Welcome,
)
from grace.errors import PayloadError

_ENVELOPE = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
_OF_LEARNERS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in (Hello, Seed, Progress, Contribution, Goodbye)}
_OF_SYNCERS = {kind.__name__: msgspec.msgpack.Decoder(kind) for kind in (Welcome, Pull, Update, Refusal)}


def pack(message: FromLearner | FromSyncer) -> bytes:
    """A message as bytes."""
    return msgspec.msgpack.encode((type(message).__name__, message))


def read_learner(data: bytes, sender: str) -> FromLearner:
    """The message of a learner.

    Raises:
        PayloadError: no learner sends this; names the sender.
    """
    message: FromLearner = _read(data, sender, _OF_LEARNERS)
    return message


def read_syncer(data: bytes, sender: str) -> FromSyncer:
    """The message of a syncer.

    Raises:
        PayloadError: no syncer sends this; names the sender.
    """
    message: FromSyncer = _read(data, sender, _OF_SYNCERS)
    return message


def _read(data: bytes, sender: str, decoders: dict[str, Any]) -> Any:
    try:
        kind, body = _ENVELOPE.decode(data)
        if kind not in decoders:
            raise PayloadError(f"{sender} sent a message of kind {kind!r:.40}; legal: {', '.join(decoders)}")
        return decoders[kind].decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"{sender} sent what is no message: {error}") from error
