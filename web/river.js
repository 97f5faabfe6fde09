// The shape of a river past its places. Positions and rates in, SVG paths out; nothing here touches the page.
//
// The river runs along one axis: `along` is the way of the stream, `across` the way to the cards, which lie on the far
// bank. Drawn to the right that is x and y, drawn downwards y and x. Widths are in proportion to rates.

const STEP = 6
const BEND = 30

// `at`: where each place lies along; `streams`: rates between them; see `graph.js`.
export function river({ at, places, streams, middle, bank, widest, vertical = false }) {
  if (at.length === 0) return { bed: [], body: '', channel: '', lines: [], arms: [], leaving: [], marks: [] }
  const top = Math.max(...streams, ...places.map((place) => place.passed ?? place.taken ?? 0), Number.EPSILON)
  const width = (rate) => (rate > 0 ? Math.max(2, (rate / top) * widest) : 0)
  const swing = vertical ? 3 : 9
  const meander = (s) => middle + swing * Math.sin(s / (vertical ? 40 : 83)) * ease(s, at)
  const point = (s, c) => (vertical ? `${round(c)} ${round(s)}` : `${round(s)} ${round(c)}`)
  const first = at[0]
  const last = at.at(-1)
  const halves = streams.map((rate) => width(rate) / 2)
  const half = (s) => halfAt(s, at, halves)
  const [from, to] = at.length > 1 ? [first + BEND, last - BEND] : [first, first]
  const shape = (factor, extra) => outline(from - 1, to + 1, (s) => half(s) * factor + extra, meander, point)
  const flowing = at.length > 1 && streams.some((rate) => rate > 0)
  const arms = places.map((place, i) => arm(place, at[i], { meander, bank, point, width, from, to }))
  return {
    bed: [20, 12, 5].map((extra) => ({ extra, d: at.length > 1 ? shape(1, extra) : '' })),
    body: flowing ? shape(1, 0) : '',
    channel: flowing ? outline(from, to, (s) => half(s) * 0.5 * taper(s, from, to), meander, point) : '',
    lines: flowing ? lines(from, to, meander, half, point) : [],
    arms: arms.filter((one) => one !== undefined),
    leaving: vertical ? [] : places.flatMap((place, i) => leavingArm(place, at[i], meander, point, width)),
    marks: places.map((place, i) => ({ role: place.role, s: at[i], c: meander(at[i]), half: half(at[i]) })),
  }
}

// The meander fades out at both ends, where arms join.
function ease(s, at) {
  const first = at[0]
  const last = at.at(-1)
  return Math.min(1, Math.max(0, Math.min(s - first - BEND, last - BEND - s) / 60))
}

// The deepest channel begins and ends in nothing.
function taper(s, from, to) {
  const t = Math.min(1, Math.max(0, Math.min(s - from, to - s) / 70))
  return t * (2 - t)
}

// Half the width at a position: that of the stretch, changing smoothly around each place.
export function halfAt(s, at, halves) {
  if (halves.length === 0) return 0
  let stretch = at.findIndex((place) => place > s) - 1
  if (stretch === -2) stretch = halves.length - 1
  stretch = Math.min(Math.max(stretch, 0), halves.length - 1)
  const here = halves[stretch]
  const reach = (a, b) => Math.min(26, (b - a) / 2)
  const begin = at[stretch]
  const end = at[stretch + 1]
  const near = reach(begin, end)
  if (stretch > 0 && s - begin < near) return blend(halves[stretch - 1], here, 0.5 + (s - begin) / near / 2)
  if (stretch < halves.length - 1 && end - s < near) return blend(here, halves[stretch + 1], 0.5 - (end - s) / near / 2)
  return here
}

function blend(a, b, t) {
  const smooth = t * t * (3 - 2 * t)
  return a + (b - a) * smooth
}

function positions(from, to) {
  const n = Math.max(1, Math.round((to - from) / STEP))
  return Array.from({ length: n + 1 }, (_, i) => from + ((to - from) * i) / n)
}

function outline(from, to, half, middle, point) {
  const along = positions(from, to)
  const near = along.map((s) => point(s, middle(s) - half(s)))
  const far = along.map((s) => point(s, middle(s) + half(s))).reverse()
  return `M${near.join('L')}L${far.join('L')}Z`
}

// Lines that the water draws: along the deepest channel, and on both sides of it where there is room.
function lines(from, to, middle, half, point) {
  const along = positions(from, to)
  return [0, -0.58, 0.58].map((share) => `M${along.map((s) => point(s, middle(s) + share * half(s))).join('L')}`)
}

// Water between a card and the river: out of a source, into a sink. A stage only stands at the bank.
function arm(place, s, { meander, bank, point, width, from, to }) {
  const rate = place.role === 'source' ? place.passed : place.taken
  const stroke = width(rate ?? 0)
  if (place.role === 'source') {
    const join = Math.min(s + BEND, to)
    const c = meander(join)
    return { role: place.role, width: stroke, d: curve(point, s, bank, join, c, true) }
  }
  if (place.role === 'sink' || place.role === 'loss') {
    const leave = Math.max(s - BEND, from)
    const c = meander(leave)
    return { role: place.role, width: stroke, d: curve(point, leave, c, s, bank, false) }
  }
  return undefined
}

// A quarter turn: `rising` begins across the stream and ends along it.
function curve(point, s1, c1, s2, c2, rising) {
  const knee = rising ? point(s1, c2) : point(s2, c1)
  return `M${point(s1, c1)}Q${knee} ${point(s2, c2)}`
}

// What leaves the stream at a stage runs off over the near bank.
function leavingArm(place, s, meander, point, width) {
  if (!(place.leaving > 0)) return []
  const start = s - 6
  const c = meander(start)
  const end = { s: s + 30, c: c - 46 }
  const d = `M${point(start, c)}C${point(start + 22, c)} ${point(end.s - 4, c - 12)} ${point(end.s, end.c)}`
  return [{ width: Math.max(2, width(place.leaving)), d, end, rate: place.leaving, path: place.path }]
}

function round(n) {
  return Math.round(n * 10) / 10
}

// How fast the line in the middle moves, as a factor: slow water still moves, fast water does not blur.
export function pace(rate) {
  return rate > 0 ? Math.min(2.5, 0.35 + Math.log10(1 + rate) * 0.4) : 0
}
