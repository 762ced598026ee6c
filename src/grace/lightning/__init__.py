"""Lightning: ``Trainer(strategy="ddp", callbacks=[grace.lightning.Compression("topk:ratio=0.01")])``.

For ``lightning`` and for ``pytorch_lightning``: whichever is imported already, else whichever is installed.
"""

from __future__ import annotations

from grace.lightning.compression import Compression

__all__ = ["Compression"]
