"""Prints the table of captured bytes against the emulated ledger (docs/benchmarks.md)."""

from architectures import HELD_IN
from architectures.of_zoo import ZOO
from capture.ledger import ledger_of

from baechi.capture import capture
from baechi.records import Inputs


def main() -> None:
    """One row for each model and mode."""
    print("| model | mode | layers | kept, said / true | needed, said / true | needs: equal, to 5 %, above |")
    print("|---|---|---|---|---|---|")
    for architecture in (*ZOO, *HELD_IN):
        for training in (True, False):
            inputs, model = Inputs.of(architecture.inputs()), architecture.build().train(training)
            graph = capture(model, inputs, training=training)
            ledger = ledger_of(model, graph, inputs)
            kept = [graph.amount(x, "saved_bytes") + graph.amount(x, "held_bytes") for x in ledger.windows]
            true_kept = [ledger.kept_bytes(layer) for layer in ledger.windows]
            needed = [graph.amount(layer, "temp_bytes") for layer in ledger.windows]
            true_needed = [ledger.temp_bytes(layer) for layer in ledger.windows]
            pairs = list(zip(needed, true_needed, strict=True))
            equal = sum(said == true for said, true in pairs)
            near = sum(true < said <= 1.05 * true + 64 for said, true in pairs)
            print(
                f"| {architecture.name} | {'training' if training else 'inference'} | {len(kept)} "
                f"| {sum(kept):.0f} / {sum(true_kept)} | {sum(needed):.0f} / {sum(true_needed)} "
                f"| {equal}, {near}, {len(pairs) - equal - near} |"
            )


if __name__ == "__main__":
    main()
