"""How long compressing and decompressing take, as multiples of one in-place addition: ``grace bench codecs``.

``plan`` says what is measured, ``goals`` what it should come to; ``room``, ``compressors``, ``conversations``, ``parts``
and ``naive`` make the cases; ``clock`` times them; ``run`` makes the document, which ``baseline``, ``table`` and
``figure`` read.
"""
