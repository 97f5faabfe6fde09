// One flow on the page: its river with the places along it, its curve, its latency and its balance.

import { terms, verdict } from './balance.js'
import { h, put, reconcile, s, say } from './dom.js'
import { count, duration, rate, short } from './format.js'
import { condition, inWords, kindName, places, streams } from './graph.js'
import { pace, river } from './river.js'
import { draw, sparkline } from './vitals.js'

// Narrower columns than this and the river runs down the page instead of across.
const COLUMN_MIN = 190
const ACROSS = { middle: 78, bank: 132, widest: 34 }
const DOWN = { middle: 25, bank: 58, widest: 20 }

// Details that are shown at once; more of them open on request.
const DETAILS_SHOWN = 4

const still = matchMedia('(prefers-reduced-motion: reduce)')

export class FlowView {
  #list = []
  #streams = []
  #motion

  constructor(name) {
    this.title = h('h2', {}, h('span', { class: 'kind' }, 'flow '), name)
    this.gist = h('p', { class: 'gist' })
    this.curve = sparkline()
    this.latency = h('p', { class: 'latency' })
    this.drawing = s('svg', { class: 'river', role: 'img' })
    this.lines = s('g', { class: 'lines' }, s('path'), s('path'), s('path'))
    // A layer of its own, so that what moves is all that is painted again.
    this.moving = s('svg', { class: 'river moving', 'aria-hidden': 'true' }, this.lines)
    this.cards = h('ol', { class: 'places' })
    this.map = h('div', { class: 'map' }, this.drawing, this.moving, this.cards)
    this.balance = new BalanceView()
    this.element = h(
      'section',
      { class: 'flow', 'aria-label': `Flow ${name}` },
      h('header', {}, this.title, this.gist, h('div', { class: 'curve' }, this.curve), this.latency),
      this.map,
      this.balance.element,
    )
    this.name = name
    new ResizeObserver(() => this.#draw()).observe(this.map)
  }

  update(flow, rates, curve) {
    this.#list = places(flow, rates)
    this.#streams = streams(this.#list)
    say(this.gist, `${rate(rates?.in)} in, ${rate(rates?.out)} out`)
    draw(this.curve, curve.points, rate)
    say(this.latency, latency(flow))
    reconcile(this.cards, this.#list, (place) => place.path, card, updateCard)
    put(this.drawing, 'aria-label', inWords(this.name, this.#list, rate))
    this.balance.update(flow.balance)
    this.#draw()
    this.#flow(rates?.in ?? 0)
  }

  // Nothing is known to move.
  rest() {
    this.#flow(0)
  }

  #draw() {
    const width = this.map.clientWidth
    const n = this.#list.length
    if (width === 0 || n === 0) return
    const vertical = width / n < COLUMN_MIN
    this.map.classList.toggle('down', vertical)
    this.cards.style.gridTemplateColumns = vertical ? '' : `repeat(${n}, minmax(0, 1fr))`
    const frame = this.map.getBoundingClientRect()
    const at = [...this.cards.children].map((element) => {
      const box = element.getBoundingClientRect()
      return vertical ? box.top - frame.top + Math.min(36, box.height / 2) : box.left - frame.left + box.width / 2
    })
    const size = vertical ? DOWN : ACROSS
    const height = vertical ? frame.height : size.bank
    for (const layer of [this.drawing, this.moving]) {
      put(layer, 'viewBox', `0 0 ${vertical ? size.bank : width} ${height}`)
      layer.style.width = `${vertical ? size.bank : width}px`
      layer.style.height = `${height}px`
    }
    const shape = river({ at, places: this.#list, streams: this.#streams, vertical, ...size })
    this.drawing.replaceChildren(...this.#paint(shape, at, vertical, size))
  }

  #paint(shape, at, vertical, size) {
    const beds = shape.bed.map(({ d, extra }) =>
      s('g', { class: 'bed' }, s('path', { d }), ...shape.arms.map((arm) => this.#arm(arm, extra))),
    )
    const posts = shape.marks
      .filter((mark) => mark.role === 'stage')
      .map(({ s: along, c, half }) => {
        const ends = vertical ? { x1: c + half, x2: size.bank, y1: along, y2: along } : { x1: along, x2: along, y1: c + half, y2: size.bank }
        return s('line', { class: 'post', ...ends })
      })
    const leaving = shape.leaving.map((one) =>
      s('path', { class: 'leaving', d: one.d, 'stroke-width': one.width }),
    )
    for (const [i, line] of [...this.lines.children].entries()) put(line, 'd', shape.lines[i])
    const labels = vertical ? [] : [...this.#gauges(at, size), ...shape.leaving.map(leavingLabel)]
    return [
      ...beds,
      ...posts,
      ...leaving,
      ...shape.arms.filter((arm) => arm.width > 0).map((arm) => this.#arm(arm, 0)),
      s('path', { class: 'water', d: shape.body }),
      s('path', { class: 'channel', d: shape.channel }),
      ...labels,
    ]
  }

  #arm({ d, width, role }, extra) {
    const wide = extra > 0 ? width + 2 * extra : width
    return s('path', { class: role === 'loss' ? 'arm loss' : 'arm', d, 'stroke-width': wide })
  }

  // What flows between two places, written over the water.
  #gauges(at, { middle, widest }) {
    return this.#streams.map((flowing, i) =>
      s('text', { class: 'gauge', x: (at[i] + at[i + 1]) / 2, y: middle - widest / 2 - 14 }, rate(flowing)),
    )
  }

  // The lines in the water move with the stream; they stand still for those who asked for calm.
  #flow(entered) {
    const speed = still.matches ? 0 : pace(entered)
    put(this.moving, 'data-still', speed === 0)
    // Few steps per second: more would keep the processor of whoever watches busy, and nobody would see it.
    this.#motion ??= this.lines.animate([{ strokeDashoffset: 120 }, { strokeDashoffset: 0 }], {
      duration: 6000,
      iterations: Infinity,
      easing: 'steps(40)',
    })
    if (speed === 0) this.#motion.pause()
    else {
      if (this.#motion.playState !== 'running') this.#motion.play()
      this.#motion.updatePlaybackRate(speed)
    }
  }
}

function leavingLabel({ end, rate: perSecond }) {
  return s('text', { class: 'gauge leaves', x: end.s, y: end.c - 9 }, `${rate(perSecond)} leave`)
}

function latency(flow) {
  if (!(flow.latency_p99_ns > 0)) return 'Nothing is acknowledged yet.'
  return `Arrival to acknowledgement: half within ${duration(flow.latency_p50_ns)}, 99 % within ${duration(flow.latency_p99_ns)}`
}

function card(place) {
  const element = h(
    'li',
    { class: 'place', 'data-role': place.role },
    h('p', { class: 'kind' }),
    h('h3', {}),
    h('p', { class: 'condition' }),
    h('p', { class: 'figure' }, h('strong', {}), ' ', h('span', {})),
    h('p', { class: 'why' }),
    h('p', { class: 'errors' }),
    h('p', { class: 'leaves' }),
    h('dl', { class: 'details' }),
    h('details', { class: 'more', hidden: true }, h('summary', {}), h('dl', { class: 'details' })),
  )
  return element
}

function updateCard(element, place) {
  const part = (selector) => element.querySelector(selector)
  const state = condition(place)
  put(element, 'data-level', state.level)
  say(part('.kind'), place.label === '' ? kindName(place.kind) : `${kindName(place.kind)} “${place.label}”`)
  say(part('h3'), place.component)
  const through = place.role === 'stage' ? place.passed : (place.passed ?? place.taken)
  say(part('.figure strong'), rate(through))
  const total = place.role === 'source' || place.role === 'stage' ? place.sent : place.received
  say(part('.figure span'), `${short(total)} in total`)
  put(part('.figure span'), 'title', count(total))
  show(part('.condition'), state.text)
  show(part('.why'), place.not_ready ?? '')
  show(part('.errors'), place.errors > 0 ? errors(place) : '')
  show(part('.leaves'), place.leaving > 0 ? `${rate(place.leaving)} leave the stream here` : '')
  const details = [...place.children.map(asDetail), ...place.details]
  const shown = details.length > DETAILS_SHOWN ? details.slice(0, DETAILS_SHOWN - 1) : details
  const more = details.slice(shown.length)
  fillDetails(part('.details'), shown)
  const box = part('.more')
  put(box, 'hidden', more.length === 0)
  say(box.querySelector('summary'), `${more.length} more`)
  fillDetails(box.querySelector('dl'), more)
}

function errors(place) {
  const now = place.errorRate > 0 ? `, ${rate(place.errorRate)} now` : ''
  return `${count(place.errors)} ${place.errors === 1 ? 'error' : 'errors'}${now}`
}

// A processor inside a processor.
function asDetail(child) {
  const name = child.label === '' ? child.component : `${child.component} “${child.label}”`
  const failed = child.errors > 0 ? `, ${errors(child)}` : ''
  return { name, value: `${rate(child.passed)}${failed}` }
}

function fillDetails(list, details) {
  reconcile(
    list,
    details.map((detail, i) => ({ ...detail, i })),
    (detail) => `${detail.i} ${detail.name}`,
    (detail) => h('div', {}, h('dt', {}, detail.name), h('dd', {})),
    (element, detail) => say(element.querySelector('dd'), plain(detail.value)),
  )
}

function plain(value) {
  if (typeof value === 'number') return Number.isInteger(value) ? count(value) : String(value)
  return typeof value === 'string' ? value : JSON.stringify(value)
}

function show(element, text) {
  say(element, text)
  put(element, 'hidden', text === '')
}

// The equation, written out and checked.
class BalanceView {
  constructor() {
    this.verdict = h('p', { class: 'verdict' })
    this.list = h('dl', {})
    this.element = h('div', { class: 'balance', role: 'group', 'aria-label': 'Balance of messages' }, this.list, this.verdict)
  }

  update(balance) {
    const { good, text } = verdict(balance)
    put(this.verdict, 'data-good', String(good))
    say(this.verdict, text)
    reconcile(
      this.list,
      terms(balance),
      (term) => term.key,
      (term) =>
        h(
          'div',
          { class: `term ${term.key}` },
          h('span', { class: 'sign', 'aria-hidden': 'true' }, term.sign),
          h('dt', {}, term.name),
          h('dd', { class: 'value', 'data-term': term.key }),
          h('dd', { class: 'reasons' }),
        ),
      (element, term) => {
        say(element.querySelector('.value'), count(term.value))
        put(element, 'data-some', term.value > 0)
        show(element.querySelector('.reasons'), term.reasons.map(([reason, n]) => `${reason} ${count(n)}`).join(', '))
      },
    )
  }
}
