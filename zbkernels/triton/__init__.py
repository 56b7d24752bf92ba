"""Triton kernels: one module per op, each a set of plain functions on tensors.

Nothing heavy is imported here, and none of the op modules imports ``triton`` at its top: their ``can_run``
answers also where Triton is not installed, and the kernels under ``zbkernels.triton.kernels`` are imported on
the first launch. The modules are ``conv_relu_pool`` (with ``conv_tiles``, its fast kernel, and ``signature``,
which joins bits), ``linear_relu``, ``nap_pack``, ``nap_unpack``, ``nap_hash``, ``nap_hamming``, ``nap_topk``,
``nap_group``, ``nap_frequency``, ``dual_gram`` and ``dual_matvec`` (with ``dual_kernel``, what both need), and
``layer_kernel``.
``tiles`` proposes configurations of the matrix products for a ``target``,
``config`` chooses among all kernels' (``results`` keeps what was tuned), ``launch`` starts kernels for all ops,
and ``compile`` turns a call into device code ahead of time, on a machine with no GPU.
"""
