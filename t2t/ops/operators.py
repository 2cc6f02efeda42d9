"""Operations with Triton kernels as operators that torch.compile traces through.

Registering them imports the compiler, which takes long: this file is imported only
where something is compiled or traced.
"""

import torch

from t2t.ops.operations import OPERATIONS

for operation in OPERATIONS:
    name = f"t2t::{operation.name}"
    torch.library.triton_op(name, operation.forward, mutates_args=())
    if operation.backward is not None and operation.gradients is not None:
        torch.library.triton_op(f"{name}_backward", operation.backward, mutates_args=())
        torch.library.register_autograd(
            name, operation.gradients, setup_context=operation.save
        )
