"""What the tests of every template check."""


def assert_right(workload, choice):
    """`choice`, compiled for the GPU at hand, computes its run within the budget for error."""
    from atoffer_rl.kernels.verify import verify_choice

    verdict = verify_choice(workload, choice)
    assert verdict.passed, f"{choice} of {workload}: {verdict.reason}"
