"""The score board of the codecs: what they take, as multiples of one in-place addition, beside goals and rivals.

``goals`` says what should be reached; ``plan`` what is measured; ``naive`` and ``parts`` make cases beside those that
``grace bench codecs`` has, whose clock and document this one shares; ``board`` puts goals and rivals into the rows, which
``baseline``, ``table`` and ``figure`` read.
"""
