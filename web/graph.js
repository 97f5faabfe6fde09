// The places along a flow's river, in the order of the stream: inputs, then what works on messages, then outputs.
// A flow's state and its rates in; places out, each with what passes it and what leaves the stream there.

const ORDER = { input: 0, buffer: 1, processor: 1, output: 2, dead_letter: 3 }
const ROLE = { input: 'source', buffer: 'stage', processor: 'stage', output: 'sink', dead_letter: 'loss' }

// A difference between what a stage took and gave that is smaller than this share is only messages under way.
const NOISE = 0.02

export function places(flow, rates) {
  const nodes = flow.nodes.map((node) => ({ node, children: [] }))
  const within = (inner, outer) => inner.kind === outer.kind && inner.path.startsWith(`${outer.path}.`)
  const top = []
  for (const entry of nodes) {
    const parents = nodes.filter((other) => other !== entry && within(entry.node, other.node))
    const parent = parents.sort((a, b) => b.node.path.length - a.node.path.length)[0]
    if (parent) parent.children.push(entry)
    else top.push(entry)
  }
  // Several inputs or outputs behind one are places of their own; processors inside a processor are part of it.
  const flat = top.flatMap((entry) => (ROLE[entry.node.kind] === 'stage' ? [entry] : leaves(entry)))
  const ordered = flat
    .map((entry, index) => ({ ...entry, index }))
    .sort((a, b) => ORDER[a.node.kind] - ORDER[b.node.kind] || a.index - b.index)
  return ordered.map(({ node, children }) => place(node, children, rates))
}

function leaves(entry) {
  return entry.children.length === 0 ? [entry] : entry.children.flatMap(leaves)
}

function place(node, children, rates) {
  const rate = rates?.nodes.get(node.path) ?? {}
  const role = ROLE[node.kind]
  // What an input receives and what an output sends on is not known to them in the same unit; the stream is.
  const passed = role === 'source' ? rate.sent : role === 'stage' ? rate.sent : rate.received
  return {
    ...node,
    role,
    children: children.map((child) => place(child.node, child.children, rates)),
    taken: role === 'source' ? rate.sent : rate.received,
    passed,
    errorRate: rate.errors,
    leaving: role === 'stage' ? leaving(rate, rates) : 0,
  }
}

// Messages per second that a stage takes and does not pass on. No more can leave than the flow's balance says are gone:
// the rest of a burst is still under way.
function leaving(rate, ofFlow) {
  const difference = (rate.received ?? 0) - (rate.sent ?? 0)
  if (difference <= NOISE * (rate.received ?? 0)) return 0
  return Math.min(difference, (ofFlow.filtered ?? Infinity) + (ofFlow.dropped ?? Infinity))
}

// What flows between each place and the next: one number fewer than places. Sources add up, a stage passes on what it
// sent, and of several outputs each gets its own, so the stream past one is as wide as the widest still to come.
export function streams(list) {
  let carried = 0
  return list.slice(0, -1).map((here, i) => {
    if (here.role === 'source') carried += here.passed ?? 0
    else if (here.role === 'stage') carried = here.passed ?? 0
    else carried = Math.max(0, ...list.slice(i + 1).map((next) => next.taken ?? 0))
    return carried
  })
}

const KINDS = { input: 'input', buffer: 'buffer', processor: 'processor', output: 'output', dead_letter: 'dead letter' }

export function kindName(kind) {
  return KINDS[kind] ?? kind
}

// The state of a place in words; `level` is good, bad or quiet.
export function condition(node) {
  if (node.connected === true) return { level: 'good', text: 'connected' }
  if (node.connected === false) return { level: 'bad', text: 'not connected' }
  return { level: 'quiet', text: '' }
}

// One sentence with the whole drawing in it, for those who cannot see it.
export function inWords(name, list, format) {
  const stops = list.map((place) => {
    const state = condition(place)
    const parts = [kindName(place.kind), place.component, format(place.passed ?? place.taken)]
    if (state.level === 'bad') parts.push(state.text)
    if (place.leaving > 0) parts.push(`${format(place.leaving)} leave here`)
    return parts.join(' ')
  })
  return `Flow ${name}: ${stops.join(', then ')}.`
}
