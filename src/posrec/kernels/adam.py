"""Adam (Kingma and Ba, 2015) of weights that a kernel holds."""

import triton
import triton.language as tl


@triton.jit
def adam_factors(rate, step, beta1, beta2):
    """The rate divided by the first moment's bias, and what the root of the second is multiplied by."""
    steps = tl.load(step)
    return tl.load(rate) / (1 - tl.exp(steps * tl.log(beta1))), 1 / tl.sqrt(1 - tl.exp(steps * tl.log(beta2)))


@triton.jit
def adam_of(x, m, v, gradient, rate, root, l2, beta1, beta2, epsilon):
    """Adam (Kingma and Ba, 2015); l2 is added to the gradient."""
    gradient += l2 * x
    m = beta1 * m + (1 - beta1) * gradient
    v = beta2 * v + (1 - beta2) * gradient * gradient
    divisor = tl.sqrt(v) * root + epsilon
    return x - rate * m * tl.rsqrt(divisor * divisor), m, v  # quicker than a division
