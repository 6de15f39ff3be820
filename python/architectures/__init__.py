"""Public architectures, as definitions with seeded weights, and what becomes of each when it is packaged.

:mod:`.zoo` is the list; :mod:`.pictures`, :mod:`.language`, :mod:`.generation`, :mod:`.sound` and :mod:`.plain` are its
parts. :mod:`.check` packages them, and compares their results with PyTorch's. scripts/ecosystem/architectures installs what
they need.
"""
