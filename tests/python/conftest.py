"""Every test runs on the CPU, and on the GPU too with GTRAIN_TEST_DEVICE=cuda."""

import gc
import os

import numpy as np
import pytest

import gtrain as gt

DEVICE = os.environ.get("GTRAIN_TEST_DEVICE", "cpu")


@pytest.fixture(autouse=True)
def ctx():
    """A default context of the test's own: small, seeded, and empty at the end."""
    context = gt.Context(DEVICE, seed=1, threads=2, allow_tf32=False)
    gt.set_default_context(context)
    with context:
        yield context
    gt.set_default_context(None)
    gc.collect()
    if not context.closed and not context._exports:
        context.close()


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture
def torch():
    module = pytest.importorskip("torch")
    module.manual_seed(0)
    return module


def close(ours, theirs, rtol=1e-5, atol=1e-6):
    ours = ours.detach().numpy() if isinstance(ours, gt.Tensor) else np.asarray(ours)
    theirs = theirs.detach().cpu().numpy() if type(theirs).__module__.startswith("torch") else np.asarray(theirs)
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol)
