import assert from 'node:assert/strict'
import test from 'node:test'
import { halfAt, pace, river } from './river.js'

const source = { role: 'source', passed: 100, taken: 100, path: 'i' }
const stage = { role: 'stage', passed: 50, taken: 100, leaving: 50, path: 'p' }
const sink = { role: 'sink', passed: 50, taken: 50, path: 'o' }
const across = { at: [100, 300, 500], places: [source, stage, sink], streams: [100, 50], middle: 80, bank: 130, widest: 30 }

function numbers(d) {
  return [...d.matchAll(/-?[\d.]+/g)].map(Number)
}

test('the river is as wide as its rate, changes smoothly at a place, and is never wider than its stretches', () => {
  const halves = [15, 7.5]
  assert.equal(halfAt(200, across.at, halves), 15)
  assert.equal(halfAt(400, across.at, halves), 7.5)
  assert.equal(halfAt(300, across.at, halves), 11.25)
  for (let s = 100; s <= 500; s += 1) {
    const here = halfAt(s, across.at, halves)
    assert.ok(here <= 15 && here >= 7.5)
    assert.ok(Math.abs(here - halfAt(s + 1, across.at, halves)) < 0.6, `a step at ${s}`)
  }
})

test('a drawing has water, an arm at each end, and an arm where messages leave', () => {
  const shape = river(across)
  assert.deepEqual(shape.arms.map((arm) => arm.role), ['source', 'sink'])
  assert.deepEqual(shape.arms.map((arm) => arm.width), [30, 15])
  assert.equal(shape.leaving.length, 1)
  assert.equal(shape.leaving[0].width, 15)
  assert.equal(shape.bed.length, 3)
  for (const d of [shape.body, shape.channel, ...shape.lines, ...shape.arms.map((arm) => arm.d)]) {
    assert.ok(d.startsWith('M'))
    assert.ok(numbers(d).every(Number.isFinite))
  }
})

test('drawn downwards, the same river swaps its axes', () => {
  const down = river({ ...across, middle: 24, bank: 58, widest: 20, vertical: true })
  const xs = numbers(down.body).filter((_, i) => i % 2 === 0)
  const ys = numbers(down.body).filter((_, i) => i % 2 === 1)
  assert.ok(Math.max(...xs) < 58 && Math.min(...xs) > 0)
  assert.ok(Math.min(...ys) >= 100 && Math.max(...ys) <= 500)
  assert.equal(down.lines.length, 3)
  assert.deepEqual(down.leaving, [])
})

test('a dry flow has a bed and no water', () => {
  const dry = river({ ...across, places: [{ ...source, passed: 0 }, { ...stage, passed: 0, taken: 0, leaving: 0 }, { ...sink, taken: 0, passed: 0 }], streams: [0, 0] })
  assert.equal(dry.body, '')
  assert.deepEqual(dry.lines, [])
  assert.ok(dry.arms.every((arm) => arm.width === 0))
  assert.ok(dry.bed.every((bed) => bed.d !== ''))
})

test('a trickle is still seen, and one place or none is drawn without fail', () => {
  const trickle = river({ ...across, streams: [100, 0.001] })
  assert.ok(trickle.body !== '')
  assert.equal(river({ ...across, at: [], places: [], streams: [] }).body, '')
  assert.equal(river({ ...across, at: [10], places: [source], streams: [] }).body, '')
})

test('fast water is faster than slow water, within what an eye can follow', () => {
  assert.equal(pace(0), 0)
  assert.equal(pace(undefined), 0)
  assert.ok(pace(1) > 0.3 && pace(1) < pace(1000) && pace(1e9) <= 2.5)
})
