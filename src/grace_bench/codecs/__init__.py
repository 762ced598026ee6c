"""Times of compressing and decompressing on this machine, and the links on which that pays: ``grace bench codecs``.

``plan`` says what is measured; ``buffers``, ``compressors``, ``conversations`` and ``cases`` make the cases; ``clock`` times
them; ``bench`` makes the document, ``break_even`` adds the links, ``table`` and ``figure`` show both; ``session`` runs it
for a person.
"""
