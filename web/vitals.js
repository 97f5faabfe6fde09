// The strip at the top: how much flows, and what it costs.

import { h, put, s, say } from './dom.js'
import { bytes, count, duration, percent, rate, span } from './format.js'
import { spark } from './spark.js'

const CURVE = { width: 220, height: 40, spanMs: 300_000 }

export class Vitals {
  #tiles

  constructor(list) {
    this.#tiles = {
      flow: tile(list, 'Messages in', true),
      cpu: tile(list, 'Processor', true),
      memory: tile(list, 'Memory', false),
      uptime: tile(list, 'Running for', false),
    }
  }

  update(look, rates, curves) {
    const { flow, cpu, memory, uptime } = this.#tiles
    const { process } = look
    // Without a flow what comes are the rows of tables.
    const byFlows = look.flows.length > 0 || look.tables.length === 0
    say(flow.name, byFlows ? 'Messages in' : 'Rows in')
    say(flow.value, rate(byFlows ? rates.in : rates.rows))
    say(flow.note, byFlows ? `${rate(rates.out)} out` : '')
    draw(flow.curve, (byFlows ? curves.entered : curves.rows).points, (n) => rate(n))
    say(cpu.value, rates.cores === undefined ? percent(undefined) : percent(rates.cores / process.cores))
    const each = rates.cpuNsEach === undefined ? '' : `, ${duration(rates.cpuNsEach)} per message`
    say(cpu.note, `of ${process.cores} cores${each}`)
    draw(cpu.curve, curves.cpu.points, (n) => percent(n / process.cores))
    say(memory.value, bytes(process.resident_bytes))
    say(memory.note, allocations(rates))
    say(uptime.value, span(look.uptime_ms))
    say(uptime.note, `version ${look.version}`)
  }
}

function allocations(rates) {
  if (rates.allocationsEach === undefined) return ''
  const n = rates.allocationsEach
  return `${n < 0.995 ? n.toFixed(2) : n < 99.5 ? n.toFixed(1) : count(n)} allocations, ${bytes(rates.bytesEach)} per message`
}

function tile(list, name, withCurve) {
  const value = h('dd', { class: 'value' }, '–')
  const note = h('dd', { class: 'note' })
  const title = h('dt', {}, name)
  const curve = withCurve ? sparkline() : undefined
  list.append(h('div', { class: 'vital' }, title, value, note, curve && h('dd', { class: 'curve' }, curve)))
  return { name: title, value, note, curve }
}

export function sparkline() {
  const { width, height } = CURVE
  return s(
    'svg',
    { class: 'spark', viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: 'none', role: 'img' },
    s('path', { class: 'area' }),
    s('path', { class: 'line' }),
  )
}

// Draws the last minutes, and says them.
export function draw(svg, points, format) {
  const curve = spark(points, CURVE.width, CURVE.height, CURVE.spanMs)
  const [area, line] = svg.children
  put(area, 'd', curve.area)
  put(line, 'd', curve.line)
  const minutes = span((points.at(-1)?.at ?? 0) - (points[0]?.at ?? 0))
  const words =
    curve.words ??
    `The last ${minutes}: now ${format(curve.now)}, lowest ${format(curve.lowest)}, highest ${format(curve.highest)}.`
  put(svg, 'aria-label', words)
}
