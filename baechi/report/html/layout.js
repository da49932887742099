// A layered layout: what reads stands below what it reads. After Sugiyama: turn back edges, rank by the
// longest path, order each rank by its neighbours, move to the neighbours' middle. All edges of one
// source share a line as far down as they go together, so that a tensor read by all layers is one line.

const RANK_HEIGHT = 50;
const NODE_HEIGHT = 24;
const SPACE = 16;
const STRAIGHT = 1e6; // how much more a line stays where it is than a node: else it drifts from rank to rank

/** Links that close a circle, when nodes are visited in their order. */
function backLinks(count, links) {
  const out = Array.from({ length: count }, () => []);
  for (const link of links) out[link.from].push(link);
  const state = new Uint8Array(count); // 1: on the way, 2: done
  const back = new Set();
  for (let root = 0; root < count; root += 1) {
    const stack = state[root] ? [] : [[root, 0]];
    while (stack.length) {
      const top = stack[stack.length - 1];
      const [node, next] = top;
      state[node] = 1;
      if (next === out[node].length) {
        state[node] = 2;
        stack.pop();
        continue;
      }
      top[1] += 1;
      const link = out[node][next];
      if (state[link.to] === 1) back.add(link);
      else if (!state[link.to]) stack.push([link.to, 0]);
    }
  }
  return back;
}

/** The rank of each node: one below the last that it reads; what reads nothing, one above its first reader. */
function ranks(count, ways) {
  const below = Array.from({ length: count }, () => []);
  const missing = new Uint32Array(count);
  for (const [from, to] of ways) {
    below[from].push(to);
    missing[to] += 1;
  }
  const reads = Array.from(missing, (number) => number > 0);
  const rank = new Array(count).fill(0);
  const ready = [...rank.keys()].filter((node) => !missing[node]);
  for (let place = 0; place < ready.length; place += 1) {
    for (const next of below[ready[place]]) {
      rank[next] = Math.max(rank[next], rank[ready[place]] + 1);
      missing[next] -= 1;
      if (!missing[next]) ready.push(next);
    }
  }
  for (let node = 0; node < count; node += 1) {
    if (!reads[node] && below[node].length) rank[node] = Math.min(...below[node].map((next) => rank[next])) - 1;
  }
  return rank;
}

/** Points where a source's line passes ranks, and the segments between neighbouring ranks. */
function route(nodes, ways, rank) {
  const points = nodes.map((node, number) => ({ rank: rank[number], width: node.width, node: number }));
  const segments = new Map();
  const passing = new Map();
  const through = (source, level) => {
    const key = `${source} ${level}`;
    if (!passing.has(key)) {
      passing.set(key, points.length);
      points.push({ rank: level, width: 4, node: -1 });
    }
    return passing.get(key);
  };
  ways.forEach(([from, to], way) => {
    let last = from;
    for (let level = rank[from] + 1; level <= rank[to]; level += 1) {
      const next = level === rank[to] ? to : through(from, level);
      const key = `${last} ${next}`;
      if (!segments.has(key)) segments.set(key, { from: last, to: next, ways: [] });
      segments.get(key).ways.push(way);
      last = next;
    }
  });
  return { points, segments: [...segments.values()] };
}

/** Neighbours of each point, above and below. */
function neighbours(points, segments) {
  const sides = { up: points.map(() => []), down: points.map(() => []) };
  for (const { from, to } of segments) {
    sides.up[to].push(from);
    sides.down[from].push(to);
  }
  return sides;
}

/** Crossings between a rank and the one above it. */
function crossings(level, place, up) {
  const ends = level.flatMap((point) => up[point].map((other) => place[other]).sort((a, b) => a - b));
  let found = 0;
  for (let one = 0; one < ends.length; one += 1) {
    for (let other = one + 1; other < ends.length; other += 1) if (ends[one] > ends[other]) found += 1;
  }
  return found;
}

/** Put each rank in the order of the middles of its neighbours, down and up again; keep the best. */
function orderRanks(levels, points, sides) {
  const place = new Array(points.length).fill(0);
  const note = () => levels.forEach((level) => level.forEach((point, number) => (place[point] = number)));
  const middle = (list, own) => (list.length ? list.reduce((sum, p) => sum + place[p], 0) / list.length : own);
  let best = { crossings: Infinity, levels };
  note();
  for (let sweep = 0; sweep < 8; sweep += 1) {
    const side = sweep % 2 ? sides.down : sides.up;
    const turns = sweep % 2 ? levels.toReversed() : levels;
    for (const level of turns) {
      const key = new Map(level.map((point) => [point, middle(side[point], place[point])]));
      level.sort((a, b) => key.get(a) - key.get(b));
      level.forEach((point, number) => (place[point] = number));
    }
    const count = levels.reduce((sum, level) => sum + crossings(level, place, sides.up), 0);
    if (count < best.crossings) best = { crossings: count, levels: levels.map((level) => [...level]) };
    if (!count) break;
  }
  return best.levels;
}

/** Places as near as possible to the wished ones, in order, without overlaps (pooled neighbours). */
function spread(level, points, wish) {
  const blocks = [];
  let shift = 0;
  level.forEach((point, number) => {
    if (number) shift += (points[level[number - 1]].width + points[point].width) / 2 + SPACE;
    const weight = points[point].node < 0 ? STRAIGHT : 1;
    let block = { sum: weight * (wish[point] - shift), weight, members: [[point, shift]] };
    while (blocks.length && blocks[blocks.length - 1].sum / blocks[blocks.length - 1].weight > block.sum / block.weight) {
      const last = blocks.pop();
      block = { sum: last.sum + block.sum, weight: last.weight + block.weight, members: [...last.members, ...block.members] };
    }
    blocks.push(block);
  });
  for (const { sum, weight, members } of blocks) for (const [point, own] of members) points[point].x = sum / weight + own;
}

/** Which neighbours a point wants to be near: a line its own further way, so that it stays straight. */
function wished(point, near, points) {
  if (!near.length) return [point];
  const line = points[point].node < 0 ? near.filter((other) => points[other].node < 0) : [];
  return line.length ? line : near;
}

/**
 * Lay out nodes and links.
 *
 * @param nodes with a width each, in code order
 * @param links `{from, to}`, numbers of nodes
 * @return points (nodes first) with x and y of their middles, segments between them, the picture's size
 */
function layout(nodes, links) {
  const back = backLinks(nodes.length, links);
  const ways = links.map((link) => (back.has(link) ? [link.to, link.from] : [link.from, link.to]));
  const rank = ranks(nodes.length, ways);
  const { points, segments } = route(nodes, ways, rank);
  const sides = neighbours(points, segments);
  let levels = [];
  points.forEach((point, number) => (levels[point.rank] ??= []).push(number));
  levels = orderRanks(Array.from(levels, (level) => level ?? []), points, sides);
  for (const level of levels) spread(level, points, new Array(points.length).fill(0));
  for (let sweep = 0; sweep < 10; sweep += 1) {
    const turns = sweep % 2 ? levels.toReversed() : levels;
    const side = sweep % 2 ? sides.down : sides.up;
    for (const level of turns) {
      const wish = {};
      for (const point of level) {
        const near = wished(point, side[point], points);
        wish[point] = near.reduce((sum, other) => sum + points[other].x, 0) / near.length;
      }
      spread(level, points, wish);
    }
  }
  const left = Math.min(0, ...points.map((point) => point.x - point.width / 2)) - SPACE;
  for (const point of points) {
    point.x -= left;
    point.y = NODE_HEIGHT + point.rank * RANK_HEIGHT;
  }
  const width = Math.max(...points.map((point) => point.x + point.width / 2), 0) + SPACE;
  return { points, segments, back, width, height: levels.length * RANK_HEIGHT + NODE_HEIGHT };
}
