"""What `scripts/gpu-check models` needs of PyTorch: packages of models, their tuning, and the same models in PyTorch.

:mod:`.networks` and :mod:`.cases` are the models, everywhere the same. :mod:`.make` packages them on a machine without a
GPU. On the machine with the GPU, which has another release of PyTorch, :mod:`.tune` times their candidates, :mod:`.prepare`
writes their weights and inputs, :mod:`.compare` calls them through a supervisor, and :mod:`.beside` runs them in PyTorch.
"""
