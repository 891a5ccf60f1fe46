"""The live page: what it shows (``view``), what is amiss (``warnings``), and its files (``static``)."""
