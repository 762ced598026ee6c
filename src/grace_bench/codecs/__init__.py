"""How long compressing and decompressing take on this machine, and on which links that pays: ``grace bench codecs``.

``plan`` says what is measured; ``buffers``, ``compressors``, ``conversations`` and ``cases`` make the cases; ``clock`` times
them; ``bench`` makes the document, ``break_even`` adds the links, ``table`` and ``figure`` show both; ``session`` runs it
for a person.
"""
