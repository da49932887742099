"""A measured step beside the predicted one, in a sentence."""

from baechi.records.timeline import Timeline
from baechi.units import format_seconds


def measured_beside(predicted: Timeline, measured: Timeline | None) -> str:
    """What was measured; where that is another kind of step than the predicted one, so much is said."""
    if measured is None:
        return ""
    if measured.mode == predicted.mode:
        return f" Measured: {format_seconds(measured.makespan_s)}."
    return (
        f" Measured: {format_seconds(measured.makespan_s)}, but in {measured.mode}, where {predicted.mode} "
        "is predicted: the two do not compare."
    )
