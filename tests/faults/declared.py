"""Faults: in each one protection is missing, since a text of the source is another one. Tests must fail."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A protection that is missing.

    Args:
        name: what is done wrong, in a few words.
        breaks: what goes wrong then.
        module: where.
        old: text that is there exactly once.
        new: what stands there instead.
        default: tests of the default tier that must fail, below `tests/`.
        full: tests of the full tier that must fail, if none of the default tier does.
    """

    name: str
    breaks: str
    module: str
    old: str
    new: str
    default: tuple[str, ...] = ()
    full: tuple[str, ...] = ()


WAITS = "run/step/test_waits.py::test_nothing_is_missing"
RACES = "backend/virtual/machine/test_random_programs.py"
LOOP = "run/pipeline/test_users_loop.py"

TRANSFERS = (
    Fault(
        "a transfer leaves before its tensor is made",
        "The copy has the bytes that were there before: wrong numbers on real devices.",
        "baechi.backend.transfer",
        "    backend.wait(tx, backend.record(backend.compute_stream(source)) if ready is None else ready)\n",
        "",
        default=(WAITS,),
    ),
    Fault(
        "a consumer does not wait for its copy",
        "A layer reads a copy that is still on its way.",
        "baechi.backend.transfer",
        "    backend.wait(consumer, arrived)\n",
        "",
        default=(WAITS,),
    ),
    Fault(
        "a source that is sent is not held",
        "Its memory is used again while the transfer still reads it.",
        "baechi.backend.transfer",
        "    backend.use(tensor, tx)\n",
        "",
        default=("run/step/test_waits.py::test_gradients_that_travel_are_not_added_to", WAITS),
    ),
    Fault(
        "a copy is not held",
        "Its memory is used again while its reader still runs.",
        "baechi.backend.transfer",
        "    backend.use(copied, consumer)\n",
        "",
        default=(WAITS, "run/step/test_waits.py::test_uploaded_copies_are_kept"),
    ),
    Fault(
        "a gradient that is sent is not held",
        "Autograd adds another gradient to it in place, while it is being sent.",
        "baechi.backend.transfer",
        "way.back, way.held = Way(way.backend, way.target, way.source, bare), grad",
        "way.back, way.held = Way(way.backend, way.target, way.source, bare), None",
        default=(
            "run/step/test_gradients_that_travel.py::test_gradients_that_travel_are_not_added_to_in_place",
        ),
    ),
    Fault(
        "a backward does not wait for the gradient that came back",
        "The producer's backward reads a gradient that is still on its way.",
        "baechi.backend.transfer",
        "                receive(grad, way.backend, way.source, way.back.arrived)\n",
        "",
        default=(WAITS,),
    ),
    Fault(
        "a write does not wait for transfers that read",
        "A transfer sends what was written after it left.",
        "baechi.backend.sends",
        "            backend.wait(stream, event)\n",
        "            del event\n",
        default=("run/step/test_waits.py::test_writers_wait",),
    ),
    Fault(
        "the caller's writes do not wait for the step's transfers",
        "An input or weight that is written after the step is sent as it is then.",
        "baechi.run.step.step",
        '"""End the step: its inputs and weights belong to the caller again, who may write them."""\n'
        "        wait_for_all_sends(self.backend)\n",
        '"""End the step."""\n',
        default=(
            "run/step/test_writes.py::test_inputs_may_be_written_after_the_step",
            "run/step/test_writes.py::test_weights_may_be_written_after_the_step",
        ),
    ),
    Fault(
        "layers that may write anything do not wait",
        "What is being sent is written by a layer that does not say so.",
        "baechi.run.step.step",
        "        wait_for_sends(self.backend, place)\n",
        "        del place\n",
        default=("run/step/test_writes.py::test_layers_that_write_what_they_handed_out",),
    ),
)

COPIES = (
    Fault(
        "a copy is used after its tensor was written",
        "A layer on another device reads the values of before the write.",
        "baechi.run.step.copies",
        "    return version_of(tensor), 0 if mark is None else mark.writes, recorded\n",
        "    return 0, 0, recorded\n",
        default=("run/step/test_defects.py::test_r5_copies_are_never_stale",),
    ),
    Fault(
        "a copy that was made under no_grad is recorded",
        "Code that records reads a copy without history, and the gradient is lost.",
        "baechi.run.step.copies",
        "    recorded = tensor.requires_grad and torch.is_grad_enabled()\n",
        "    recorded = False\n",
        full=("run/guards/test_custom_functions.py::test_gradients_are_those_of_one_device",),
    ),
    Fault(
        "what was recorded is copied anew under no_grad",
        "A teacher's copy and the student's copy are two: the second lacks its history.",
        "baechi.run.step.step",
        "        if unrecorded and tensor.grad_fn is not None:",
        "        if False:",
        default=("run/pipeline/test_without_history.py::test_a_teacher_reads_the_copies_of_others",),
    ),
    Fault(
        "outputs stay where they were made",
        "The caller's loss mixes devices.",
        "baechi.run.step.step",
        "        move = self._moved if torch.is_inference_mode_enabled() else self.bring\n",
        "        move = lambda one, _: one\n",
        default=("run/test_hard_worlds.py::test_inputs_on_other_devices",),
    ),
    Fault(
        "what a layer wrote to its copy is not written back",
        "An in-place layer on another device leaves the original as it was.",
        "baechi.run.step.loans",
        "            original.copy_(back_home)\n",
        "            pass\n",
        default=("run/step/test_loans.py::test_copies_may_be_written_by_a_learned_layer",),
    ),
)

REORDERING = (
    Fault(
        "a function that writes does not launch what waits",
        "What waits reads what was written after it.",
        "baechi.run.step.glue",
        "writes = not facts.quiet or (asked and bool(touched(func, facts.name, args, kwargs)))",
        "writes = not facts.quiet",
        default=("run/launch/test_reordering.py::test_transparent[write_under_waiting_readers]",),
    ),
    Fault(
        "a layer that writes does not launch what waits",
        "What waits reads what was written after it.",
        "baechi.run.reorder.schedule",
        "given = None if writes else _tensors_alone(call)",
        "given = _tensors_alone(call)",
        default=("run/launch/test_reordering.py::test_transparent[layers_that_write]",),
    ),
    Fault(
        "layers launch when the code reaches them",
        "The planned order is not kept.",
        "baechi.order.turns",
        "        if self._pass(queue) != position or (",
        "        if False and (",
        default=("run/launch/test_reordering.py::test_transparent[custom_function]",),
    ),
    Fault(
        "what draws waits",
        "Dropout drops other units than on one device.",
        "baechi.run.reorder.outcome",
        "            if draws(func, args, kwargs):\n",
        "            if False:\n",
        default=("run/launch/test_reordering.py::test_transparent[drawn]",),
    ),
    Fault(
        "a layer that was changed while it waited is not told",
        "It computes with what was set after the code reached it.",
        "baechi.run.reorder.schedule",
        "if held is not None and not held.is_as_noted():",
        "if False:",
        default=("run/state/test_changes.py",),
    ),
    Fault(
        "what waits launches under the grad mode of then",
        "A layer that was called under no_grad gets a history, and its weights a gradient.",
        "baechi.run.state.caller_state",
        "        stack.enter_context(torch.set_grad_enabled(self.grad))\n",
        "",
        default=("run/launch/test_reordering.py::test_transparent[gradients_off]",),
    ),
    Fault(
        "what casts weights waits",
        "A weight is cast where the layer launches, not once for all its calls.",
        "baechi.run.reorder.schedule",
        "        if caller.autocasts:\n",
        "        if False:\n",
        default=("run/launch/test_reordering.py::test_transparent[autocast_with_a_shared_weight]",),
    ),
    Fault(
        "gradients that a function returns stay where they are",
        "Autograd goes on with a gradient on the wrong device.",
        "baechi.run.guards.returned_gradients",
        "    return transfer(grad, backend, device)\n",
        "    return grad\n",
        default=("run/guards/test_returned_gradients.py::test_gradients_that_a_function_returns_go_home",),
    ),
)

EMULATOR = (
    Fault(
        "a device holds more than it has",
        "Plans that run out of memory on real devices pass.",
        "baechi.backend.virtual.machine.allocator",
        "        if live_bytes + size_bytes > limit_bytes:\n",
        "        if False:\n",
        default=("backend/virtual/machine/test_allocator.py::test_memory_ends_at_the_exact_byte",),
    ),
    Fault(
        "memory that another stream uses comes back at once",
        "Peaks are too low where tensors travel.",
        "baechi.backend.virtual.machine.allocator",
        "        if after:\n",
        "        if False:\n",
        default=("backend/virtual/machine/test_blocks.py::test_a_said_use_is_waited_for",),
    ),
    Fault(
        "memory that is freed too early is not told",
        "A missing hold passes all tests.",
        "baechi.backend.virtual.machine.allocator",
        "        if use is not None and self.fault is None:\n",
        "        if False:\n",
        default=("backend/virtual/machine/test_blocks.py::test_an_unsaid_use_is_an_early_free",),
    ),
    Fault(
        "peaks are what is held last",
        "Measured peaks are too low.",
        "baechi.backend.virtual.machine.allocator",
        "        self._peak_bytes[device] = max(self._peak_bytes[device], self._live_bytes[device])\n",
        "        self._peak_bytes[device] = self._live_bytes[device]\n",
        default=("backend/virtual/machine/test_allocator.py::test_peaks",),
    ),
    Fault(
        "every access is known to be over",
        "No race is ever found.",
        "baechi.backend.virtual.machine.streams",
        "        return access.stream is self or access.epoch <= self.seen.get(access.stream.number, 0)\n",
        "        return True\n",
        default=("backend/virtual/machine/test_races.py::test_races_are_caught",),
    ),
    Fault(
        "a stream that waits begins at once",
        "Measured steps are too short.",
        "baechi.backend.virtual.machine.streams",
        "        self.awaited += [job for job in event.jobs if job is not self.last]\n",
        "",
        default=("backend/virtual/machine/test_streams.py::test_a_stream_waits_for_an_event",),
    ),
    Fault(
        "transfers do not queue",
        "Steps with many transfers look up to two times shorter than they are.",
        "baechi.cost.channel",
        "        start_s = max(ready_s, self._free_s[channel])\n",
        "        start_s = ready_s\n",
        default=("cost/test_channel.py::test_serial_reception",),
    ),
)

SIMULATOR = (
    Fault(
        "a layer does not wait for what arrives",
        "Predicted steps are shorter than those that run.",
        "baechi.simulate.time.issue",
        "        waits = self._arriving.pop(device, [])\n",
        "        waits: list[Job] = []\n",
        default=("simulate/time/test_spans.py::test_as_the_rules_read",),
    ),
    Fault(
        "a slow host does not hold layers up",
        "Steps of small layers are predicted too short.",
        "baechi.simulate.time.issue",
        "        job = Job(device, COMPUTE, work_s, last_s + self._last_parts[layer] * work_s)\n",
        "        job = Job(device, COMPUTE, work_s)\n",
        default=("simulate/test_gradients.py::test_as_it_runs", "simulate/test_bounds.py::test_host"),
    ),
    Fault(
        "gradients come back from readers that make none",
        "Predicted steps have transfers that nobody sends.",
        "baechi.simulate.time.transfers",
        "            producers = tuple([reader for reader in transfer.consumers if reader in graded])\n",
        "            producers = transfer.consumers\n",
        default=("simulate/time/test_program.py::test_who_sends_a_gradient",),
    ),
    Fault(
        "copies take no memory in the simulator",
        "Predicted peaks are too low on devices that receive.",
        "baechi.simulate.memory.forward",
        "        self._memory.issue(transfer.target, transfer.copy_bytes, now_s)\n",
        "",
        default=("simulate/time/test_program.py::test_copies_of_what_stays",),
    ),
    Fault(
        "what is sent may be freed at once",
        "Predicted peaks are too low on devices that send.",
        "baechi.simulate.memory.forward",
        "        self.kept.newest_sent[pair] = self._times.moves[number].end_s\n",
        "",
        default=("simulate/time/test_program.py::test_who_sends_a_gradient",),
    ),
    Fault(
        "temporary tensors take no memory",
        "Layers with large temporary tensors run out of memory.",
        "baechi.simulate.memory.forward",
        "        new_bytes = footprint.saved_bytes + footprint.output_bytes + temp_bytes\n",
        "        new_bytes = footprint.saved_bytes + footprint.output_bytes\n",
        default=("simulate/test_as_it_runs.py",),
    ),
)

PLACEMENT = (
    Fault(
        "placers count no copies",
        "A plan has more on a device than fits.",
        "baechi.place.ledger",
        "            here += problem.indexed.copy_bytes[tensor]\n",
        "",
        default=("place/test_ledger.py::test_bound",),
    ),
    Fault(
        "placers do not count the optimizer's step",
        "The first step of the optimizer runs out of memory.",
        "baechi.place.ledger",
        "        return max(step_bytes, self._updates[device].needed_bytes())\n",
        "        return step_bytes\n",
        default=("place/placers/test_single.py::test_optimizer_state",),
    ),
    Fault(
        "what is too full is taken",
        "A plan that cannot run is handed out.",
        "baechi.place.tight.fit",
        "        if not attempt.excess:\n",
        "        if True:\n",
        default=("place/tight/test_fit.py",),
    ),
    Fault(
        "what an optimizer keeps takes no memory",
        "The second step runs out of memory.",
        "baechi.cost.memory",
        "        + gradients * optimizer.state_bytes\n",
        "",
        default=("cost/test_memory.py::test_training",),
    ),
    Fault(
        "a plan may tear what shares weights",
        "Tied weights lie on two devices, and drift apart.",
        "baechi.records.plan",
        "        if len(where) > 1:\n",
        "        if False:\n",
        default=("records/test_plan.py::test_faults_are_gathered",),
    ),
    Fault(
        "a plan may run a layer before what it needs",
        "A step of the plan never ends.",
        "baechi.records.plan",
        "            if place.get(target, after) < after:\n",
        "            if False:\n",
        default=("records/test_plan.py::test_order_against_an_edge",),
    ),
    Fault(
        "a plan of another model is taken",
        "Weights lie where nobody planned them.",
        "baechi.run.weights.match",
        "    if faults:\n        shown",
        "    if False:\n        shown",
        default=("run/drop_in/test_object.py::test_plan_of_another_model",),
    ),
)

PIPELINE = (
    Fault(
        "microbatches of unlike size count alike",
        "The loss and the gradients are not those of the batch.",
        "baechi.run.pipeline.batch.shares",
        "    return [rows / total for rows in parts.rows]\n",
        "    return [1 / len(parts.rows) for rows in parts.rows if total]\n",
        default=("run/pipeline/test_users_loop.py::test_outputs_and_gradients",),
    ),
    Fault(
        "labels that a loss ignores count",
        "The loss and the gradients are not those of the batch.",
        "baechi.run.pipeline.batch.shares",
        "            counts.append((counted != ignored).sum().to(_precise(counted)))\n",
        "            counts.append((counted == counted).sum().to(_precise(counted)))\n",
        full=(f"{LOOP}::test_five_steps_with_ignored_labels",),
    ),
    Fault(
        "a second gradient replaces the first",
        "What two layers of other devices read gets the gradient of one.",
        "baechi.run.pipeline.executor",
        "        cut.exit.incoming.append((grad, way))\n",
        "        cut.exit.incoming[:] = [(grad, way)]\n",
        default=("run/pipeline/test_architectures.py::test_as_the_loop",),
    ),
    Fault(
        "a part does not wait for its gradients",
        "Its backward reads gradients that are still on their way.",
        "baechi.run.pipeline.executor",
        "                receive(grad, backend, exit.place, way.arrived)\n",
        "                pass\n",
        default=("run/pipeline/test_architectures.py::test_as_the_loop",),
    ),
    Fault(
        "a part goes backward before its readers",
        "Their gradients come too late.",
        "baechi.run.pipeline.executor",
        "        for reader in sorted(part.readers):\n",
        "        for reader in ():\n",
        default=("run/pipeline/test_gone.py::test_steps",),
    ),
    Fault(
        "gradients of weights share memory",
        "The next microbatch adds to a gradient that another part still reads.",
        "baechi.run.pipeline.graph.gradients",
        "    if not memory:\n        return\n",
        "    return\n",
        default=("run/pipeline/test_shared_gradients.py::test_what_waits_is_not_added_to",),
    ),
    Fault(
        "microbatches draw from one generator",
        "The numbers drawn depend on the order of tasks.",
        "baechi.run.pipeline.lanes.kept_apart",
        "                    states.set(states.own[microbatch])\n",
        "                    pass\n",
        default=("run/pipeline/test_users_loop.py::test_each_microbatch_draws_from_its_own_seed",),
    ),
    Fault(
        "microbatches see each other's attributes",
        "A layer reads what another microbatch left for it.",
        "baechi.run.pipeline.lanes.own_state",
        "                written[key] = content_of(table)\n                refill(table, before)\n",
        "                written[key] = content_of(table)\n",
        default=("run/pipeline/test_own_state.py::test_it_is_kept_apart",),
    ),
    Fault(
        "a microbatch's fast path takes what another part made for its own",
        "Gradients run on into another stage.",
        "baechi.run.pipeline.lanes.lane_step",
        "if self._shared.has(value) or (recorded and self.parts.part_of(value) not in (None, now)):",
        "if self._shared.has(value):",
        default=("run/steady/test_lanes.py::test_it_is_left",),
    ),
    Fault(
        "hooks of weights run for each microbatch",
        "A hook that clips or counts runs too often, on parts of the gradient.",
        "baechi.run.pipeline.graph.gradients",
        "            table.clear()  # torch looks into it when the gradient comes\n",
        "            pass\n",
        default=(f"{LOOP}::test_hooks_of_weights_run_once",),
    ),
    Fault(
        "the loss's own gradient is left out",
        "A loss that is scaled, or divided for accumulation, trains as if it were not.",
        "baechi.run.pipeline.graph.gradients",
        "        multiply_each(together, there[place])\n",
        "        pass\n",
        default=("run/pipeline/test_users_loop.py::test_outputs_and_gradients",),
    ),
    Fault(
        "a device runs tasks without limit ahead",
        "Peaks are higher than predicted.",
        "baechi.run.pipeline.executor",
        "            while len(issued) >= AHEAD:  # what these free is taken until then\n",
        "            while False:\n",
        default=("run/pipeline/test_predicted.py::test_steps_and_peaks",),
    ),
    Fault(
        "what is shared may be written",
        "Microbatches read statistics that others have written.",
        "baechi.run.pipeline.lanes.shared_tensors",
        "        if (entry.owner, entry.group) in self._read & self.written:\n",
        "        if False:\n",
        default=("run/pipeline/test_own_state.py::test_statistics_that_the_code_reads_are_refused",),
    ),
)

SHARDS = (
    Fault(
        "only one shard of a sum counts",
        "A layer that is split along its inputs computes a part of its output.",
        "baechi.split.layer_shard",
        "            total = total + output\n",
        "            total = output\n",
        default=("run/split/test_rules.py::test_values_and_gradients",),
    ),
    Fault(
        "a shard takes rows of other shards",
        "An embedding that is split gives wrong rows.",
        "baechi.split.rules.layers",
        "    return torch.where(inside.unsqueeze(-1), rows, 0.0)\n",
        "    return rows\n",
        default=("run/split/test_rules.py::test_values_and_gradients",),
    ),
    Fault(
        "a weight of another length is cut",
        "A plan for other sizes is taken.",
        "baechi.run.weights.match",
        "        if name in weights and dict(_lengths(weights[name])).get(axis) != sum(sizes)\n",
        "        if False\n",
        default=("run/split/test_weights.py::test_saved_plans",),
    ),
    Fault(
        "shards are joined the other way round",
        "Outputs of a split layer have their columns exchanged.",
        "baechi.run.sharded.output",
        "    with backend.at(place):\n        return torch.cat(here, axis)\n",
        "    with backend.at(place):\n        return torch.cat(here[::-1], axis)\n",
        default=("run/split/test_sharded_outputs.py::test_returned_logits_are_joined_when_used",),
    ),
    Fault(
        "a checkpoint that lacks tensors is taken",
        "Weights stay as they were made at random.",
        "baechi.run.weights.checkpoint",
        "    if faults:\n",
        "    if False:\n",
        default=("run/weights/test_load.py::test_no_checkpoint",),
    ),
)

FAULTS = (*TRANSFERS, *COPIES, *REORDERING, *EMULATOR, *SIMULATOR, *PLACEMENT, *PIPELINE, *SHARDS)
"""All of them."""
