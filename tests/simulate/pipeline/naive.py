"""A pipelined step by another way: no events, no counters, a clock and conditions that are asked again.

It reads the layer graph, the plan and the list, and none of the code's tables.
"""

from dataclasses import dataclass, field

from baechi.records import HostCosts
from baechi.records.pipeline import Pipeline, Task

AHEAD = 3
PASSES = 3


@dataclass
class Travel:
    key: tuple[str, int, str, str, str]  # what: tensor, microbatch, target, phase, stage that sends
    source: str
    target: str
    ready_s: float
    duration_s: float
    maker: str = ""
    start_s: float | None = None
    end_s: float | None = None


@dataclass
class Naive:
    pipeline: Pipeline
    starts: dict[Task, float] = field(default_factory=dict)
    first_starts: dict[Task, float] = field(default_factory=dict)
    ends: dict[Task, float] = field(default_factory=dict)
    issued: dict[Task, tuple[float, float]] = field(default_factory=dict)
    began: dict[Task, float] = field(default_factory=dict)
    travels: list[Travel] = field(default_factory=list)

    def __post_init__(self) -> None:
        plan = self.pipeline.plan
        self.graph, self.cluster, self.order = plan.graph, plan.cluster, list(self.pipeline.order)
        self.knows_host = any(self.graph.costs(name).host_forward_s for name in self.graph.placed())
        self.transfer_s = (self.cluster.host or HostCosts()).transfer_s if self.knows_host else 0.0
        self.run_of = {name: r for r, run in enumerate(self.pipeline.runs) for name in run.layers}
        self.stage_of = {name: s for s, stage in enumerate(self.pipeline.stages) for name in stage.layers}
        self.device_of = plan.device_of

    def layers(self, task: Task) -> tuple[str, ...]:
        units = self.pipeline.runs if task.phase == "forward" else self.pipeline.stages
        return units[task.unit].layers

    def device(self, task: Task) -> str:
        return self.device_of[self.layers(task)[0]]

    def host_seconds(self, task: Task) -> float:
        if not self.knows_host:
            return 0.0
        total = self.cluster.host.task_s if self.cluster.host else 0.0
        launch_s = self.cluster.launch_s
        for name in self.layers(task):
            costs = self.graph.costs(name)
            if task.phase == "forward":
                total += costs.host_forward_s
            else:
                total += costs.host_backward_s
                total += launch_s if costs.grad_bytes and task.microbatch else 0.0
        host = self.cluster.host or HostCosts()
        own_s = host.transfer_s if task.phase == "forward" else host.backward_node_s
        return total + (launch_s + own_s) * len(self.travels_of(task))

    def travels_of(self, task: Task) -> list[Travel]:
        """What a task sends, or is the first to need from the host."""
        found = []
        position = {name: place for place, name in enumerate(self.graph.code_order())}
        if task.phase == "forward":
            for source in self.graph:
                is_input = self.graph.costs(source).kind == "input"
                home = "host" if is_input else self.device_of[source]
                readers: dict[str, list[str]] = {}
                for reader in sorted(self.graph.successors(source), key=position.__getitem__):
                    if self.device_of[reader] != home:
                        readers.setdefault(self.device_of[reader], []).append(reader)
                for target, names in readers.items():
                    first = min([self.run_of[name] for name in names])
                    if (first if is_input else self.run_of[source]) == task.unit:
                        found.append(self.travel(source, task, home, target, names[0]))
        else:
            for source in self.graph:
                if self.graph.costs(source).kind == "input":
                    continue
                own = [r for r in self.graph.successors(source) if self.stage_of[r] == task.unit]
                here = self.device(task)
                if own and self.device_of[source] != here:
                    found.append(self.travel(source, task, here, self.device_of[source], own[0]))
        return found

    def close(self, host_s: float) -> float:
        """Results are put together and fetched, one after the other; no loss is among them."""
        launch_s = self.cluster.launch_s if self.knows_host else 0.0
        own_s = (self.cluster.host or HostCosts()).transfer_s if self.knows_host else 0.0
        sent_s = launch_s + own_s
        free_s = dict.fromkeys(self.cluster.names, 0.0)
        for task, end_s in self.ends.items():
            free_s[self.device(task)] = max(free_s[self.device(task)], end_s)
        found = [
            (int(place), size, self.device_of[name])
            for name in self.graph.placed()
            for place, size in (self.graph.costs(name).returned or {}).items()
        ]
        for _, size, device in sorted(found):
            kernels, whole = 1, self.pipeline.microbatches * size
            if size <= 8:
                kernels, whole = 2 * self.pipeline.microbatches - 1, size
            rate, link = self.cluster.device(device).bytes_per_s, self.cluster.link_between(device, "host")
            joined_s = max(free_s[device], host_s + kernels * launch_s) + (2 * whole / rate if rate else 0.0)
            free_s[device] = joined_s
            host_s = max(host_s + kernels * launch_s + sent_s, joined_s)
            host_s += link.latency_s + whole / link.bytes_per_s
        return host_s

    def travel(self, tensor: str, task: Task, source: str, target: str, reader: str) -> Travel:
        link = self.cluster.link_between(source, target)
        seconds = link.latency_s + self.graph.edges[tensor, reader]["bytes"] / link.bytes_per_s
        stage = str(task.unit) if task.phase == "backward" else ""
        key = (tensor, task.microbatch, target, task.phase, stage)
        return Travel(key, source, target, 0.0, seconds, tensor if task.phase == "forward" else "")

    def awaited(self, task: Task) -> set[str]:
        """Devices whose values the code asks for in a run, or after it and before the next."""
        found = set()
        order = list(self.graph.placed())
        for name in order:
            reached = self.graph.costs(name).awaited_before
            if task.phase == "forward" and reached:
                if self.run_of[order[order.index(reached) - 1]] == task.unit:
                    found.add(self.device_of[name])
        return found

    def asks_itself(self, task: Task) -> str:
        """The last layer of a run after which the host waits for its device; empty: there is none."""
        asking = self.asking(task)
        return next((name for name in reversed(self.layers(task)) if name in asking), "")

    def asking(self, task: Task) -> set[str]:
        """The layers of a run after which the host waits for its device."""
        order, found = list(self.graph.placed()), set()
        for name in order:
            reached = self.graph.costs(name).awaited_before
            if task.phase == "forward" and reached and self.device_of[name] == self.device(task):
                before = order[order.index(reached) - 1]
                if self.run_of[before] == task.unit:
                    found.add(before)
        return found

    def answered(self, task: Task, host_free_s: float) -> float | None:
        """When the host has issued the rest of a task whose values it waited for; None: not known yet."""
        last = self.asks_itself(task)
        if not last:
            return host_free_s
        if task not in self.starts:
            return None
        issued_s, names = 0.0, self.layers(task)
        for name in names[names.index(last) + 1 :]:
            issued_s += self.graph.costs(name).host_forward_s
        return max(host_free_s, self.over(task, self.starts[task], last) + issued_s)

    def over(self, task: Task, start_s: float, last: str = "") -> float:
        """When a task is over, or one of its layers: kernels wait for the host, and for those before."""
        device = self.cluster.device(self.device(task))
        host_s = self.began[task] + (
            self.cluster.host.task_s if self.cluster.host and self.knows_host else 0.0
        )
        launch_s, layers = self.cluster.launch_s if self.knows_host else 0.0, self.layers(task)
        free_s, asking = start_s, self.asking(task)
        for name in layers if task.phase == "forward" else reversed(layers):
            costs = self.graph.costs(name)
            issue_s, work_s = costs.host_forward_s, float(costs.forward_s)  # type: ignore[arg-type]
            if task.phase == "backward":
                issue_s, work_s = costs.host_backward_s, float(costs.backward_s)  # type: ignore[arg-type]
            free_s, host_s = self.after(free_s, host_s, issue_s, work_s / device.speed)
            if name == last:
                return free_s
            if name in asking:
                host_s = max(host_s, free_s)
            if task.phase == "backward" and task.microbatch and costs.grad_bytes:
                add_s = PASSES * costs.grad_bytes / device.bytes_per_s if device.bytes_per_s else 0.0
                free_s, host_s = self.after(free_s, host_s, launch_s, add_s)
        return max(free_s, self.issued[task][1])

    def made_at(self, task: Task, maker: str, start_s: float) -> float:
        """When a layer's output leaves: at the end of the run if only what takes no time is left."""
        names = self.layers(task)
        rest = [float(self.graph.costs(name).forward_s) for name in names[names.index(maker) + 1 :]]  # type: ignore[arg-type]
        return self.over(task, start_s, maker) if any(rest) else self.ends[task]

    def after(self, free_s: float, host_s: float, issue_s: float, work_s: float) -> tuple[float, float]:
        """A layer's kernels are equally long; the first and the last decide."""
        first_s, last_s = host_s + min(self.cluster.launch_s, issue_s), host_s + issue_s
        last_work_s = work_s * min(1.0, self.cluster.launch_s / issue_s) if issue_s else 0.0
        return max(max(free_s, first_s) + work_s, last_s + last_work_s), last_s

    def early(self, task: Task, source: str) -> float:
        """What a run takes before its first layer that reads a tensor, or before it sends a first one."""
        done_s, host_s, asking = 0.0, -1e9, self.asking(task)  # the host was there long before
        speed = self.cluster.device(self.device(task)).speed
        for name in self.layers(task):
            if name in self.graph.successors(source):
                return done_s
            costs = self.graph.costs(name)
            work_s = float(costs.forward_s) / speed  # type: ignore[arg-type]
            done_s, host_s = self.after(done_s, host_s, costs.host_forward_s, work_s)
            if name in asking:
                host_s = max(host_s, done_s)
            if any(self.device_of[reader] != self.device_of[name] for reader in self.graph.successors(name)):
                return done_s
        raise AssertionError("it does not read it")

    def pause(self, task: Task, now_s: float) -> float | None:
        """When a task that has begun would have begun without a pause; None: not known yet."""
        start_s = self.first_starts[task]
        for name in self.layers(task) if task.phase == "forward" else ():
            for source in self.graph.predecessors(name):
                key = (source, task.microbatch, self.device(task), "forward", "")
                if self.graph.costs(source).kind == "input" or self.device_of[source] != self.device(task):
                    ends = [travel.end_s for travel in self.travels if travel.key == key]
                    if not ends or ends[0] is None or ends[0] > now_s:
                        return None
                    start_s = max(start_s, ends[0] - self.early(task, source))
        return start_s

    def has_all(self, task: Task, now_s: float) -> bool:
        """All but what it reads on its way."""
        k, here = task.microbatch, self.device(task)
        there = {travel.key for travel in self.travels if travel.end_s is not None and travel.end_s <= now_s}

        def over(phase: str, unit: int) -> bool:
            return self.ends.get(Task(phase, k, unit), float("inf")) <= now_s  # type: ignore[arg-type]

        if task.phase == "backward":
            if not all(over("forward", self.run_of[name]) for name in self.layers(task)):
                return False
            for name in self.layers(task):
                for reader in self.graph.successors(name):
                    stage = self.stage_of[reader]
                    if stage == task.unit:
                        continue
                    same = self.device_of[reader] == here
                    if same and not over("backward", stage):
                        return False
                    if not same and (name, k, here, "backward", str(stage)) not in there:
                        return False
            return True
        for name in self.layers(task):
            for source in self.graph.predecessors(name):
                is_input = self.graph.costs(source).kind == "input"
                if is_input or self.device_of[source] != here:
                    if (source, k, here, "forward", "") not in there and not self.early(task, source):
                        return False
                elif self.run_of[source] != task.unit and not over("forward", self.run_of[source]):
                    return False
        return True

    def run(self) -> float:
        now_s, host_free_s, issued = 0.0, 0.0, 0
        queues: dict[str, list[Task]] = {name: [] for name in self.cluster.names}
        running: dict[str, Task] = {}
        ready_s: list[float] = []
        answered: set[Task] = set()
        while len(self.ends) < len(self.order) or running:
            moved = True
            while moved:
                moved = False
                for device, task in sorted(running.items(), key=lambda item: self.first_starts[item[1]]):
                    if task not in self.ends:
                        moved |= self.go_on(task, now_s, ready_s)
                    if self.ends.get(task, float("inf")) <= now_s:
                        del running[device]
                        for travel in self.travels_of(task) if task.phase == "backward" else ():
                            travel.ready_s = now_s
                            self.travels.append(travel)
                        moved = True
                self.book(now_s)
                if issued < len(self.order) and host_free_s <= now_s:
                    task = self.order[issued]
                    device = self.device(task)
                    before = self.order[issued - 1] if issued else None
                    asked = self.awaited(before) - {self.device(before)} if before else set()
                    waits = any(queues[one] or one in running for one in asked)
                    if before and before not in answered:
                        free_s = self.answered(before, host_free_s)
                        waits |= free_s is None or free_s > now_s
                        if free_s is not None:
                            host_free_s = free_s
                            answered.add(before)
                    if not waits and len(queues[device]) + (device in running) < AHEAD:
                        taken_s = self.host_seconds(task)
                        task_s = self.cluster.host.task_s if self.cluster.host and self.knows_host else 0.0
                        first_s = min(task_s + self.cluster.launch_s, taken_s)
                        self.began[task] = now_s
                        self.issued[task] = (now_s + first_s, now_s + taken_s)
                        host_free_s = now_s + taken_s
                        queues[device].append(task)
                        issued += 1
                        for travel in self.needed(task):
                            travel.ready_s = self.issued[task][0] + self.transfer_s
                            ready_s.append(travel.ready_s)
                            self.travels.append(travel)
                        moved = True
                self.book(now_s)
            for device, queue in queues.items():
                if queue and device not in running and self.issued[queue[0]][0] <= now_s:
                    if self.has_all(queue[0], now_s):
                        task = queue.pop(0)
                        running[device] = task
                        self.first_starts[task] = now_s
                        self.go_on(task, now_s, ready_s)
            times = [*self.ends.values(), host_free_s]
            times += [time for pair in self.issued.values() for time in pair]
            times += ready_s
            times += [travel.end_s for travel in self.travels if travel.end_s is not None]
            later = [time for time in times if time > now_s]
            if not later and len(self.ends) < len(self.order):
                raise RuntimeError("it stops for ever")
            now_s = min(later, default=now_s)
        host_free_s = self.answered(self.order[-1], host_free_s) or host_free_s
        ends = [*self.ends.values(), *[travel.end_s or 0.0 for travel in self.travels]]
        began_s = min([*self.starts.values(), *[travel.start_s or 0.0 for travel in self.travels]])
        return max([*ends, self.close(host_free_s)]) - began_s

    def go_on(self, task: Task, now_s: float, ready_s: list[float]) -> bool:
        """Once all that it reads is there, it is known when it is over, and when what it makes is made."""
        start_s = self.pause(task, now_s)
        if start_s is None:
            return False
        self.starts[task] = start_s
        self.ends[task] = self.over(task, start_s)
        ready_s.append(self.answered(task, 0.0) or 0.0)
        for travel in self.made(task) if task.phase == "forward" else ():
            travel.ready_s = self.made_at(task, travel.maker, start_s)
            ready_s.append(travel.ready_s)
            self.travels.append(travel)
        return True

    def made(self, task: Task) -> list[Travel]:
        return [travel for travel in self.travels_of(task) if travel.source != "host"]

    def needed(self, task: Task) -> list[Travel]:
        found = self.travels_of(task) if task.phase == "forward" else []
        return [travel for travel in found if travel.source == "host"]

    def book(self, now_s: float) -> None:
        """Every travel that is ready takes its channel, the one that is ready first before the others."""
        for travel in sorted(self.travels, key=lambda travel: travel.ready_s):
            if travel.start_s is None and travel.ready_s <= now_s:
                serial = self.cluster.reception == "serial"
                before = [
                    other.end_s
                    for other in self.travels
                    if other.end_s is not None
                    and other.target == travel.target
                    and (serial or other.source == travel.source)
                ]
                travel.start_s = max([travel.ready_s, *before])
                travel.end_s = travel.start_s + travel.duration_s
