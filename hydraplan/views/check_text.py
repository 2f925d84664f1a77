"""What whole microbatches say of the costs of a profile, in words."""

import numpy as np

from hydraplan.files.profilefile import ProfileHeader


def check_lines(header: ProfileHeader) -> list[str]:
    """A line on how far whole microbatches are from their prediction; none of analytic profiles."""
    if not header.checks:
        return ["no whole microbatch was timed: too little time"] if header.terms else []
    error = np.abs([check.error for check in header.checks])
    return [
        f"costs of whole microbatches, not fitted: median error {np.median(error):.1%}, worst"
        f" {error.max():.1%} of {len(error)}"
    ]
