import assert from 'node:assert/strict'
import test from 'node:test'
import { condition, inWords, places, streams } from './graph.js'

function node(kind, component, path, more = {}) {
  return { kind, component, path, label: '', received: 0, sent: 0, errors: 0, connected: null, not_ready: null, details: [], ...more }
}

const flow = {
  nodes: [
    node('input', 'opcua', 'root.input', { connected: true }),
    node('processor', 'tag_processor', 'root.pipeline.processors.0'),
    node('processor', 'switch', 'root.pipeline.processors.1'),
    node('processor', 'mapping', 'root.pipeline.processors.1.switch.0.processors.0'),
    node('output', 'broker', 'root.output'),
    node('output', 'lake', 'root.output.broker.outputs.0'),
    node('output', 'file', 'root.output.broker.outputs.1', { connected: false }),
    node('dead_letter', 'file', 'root.dead_letter'),
  ],
}

const rates = {
  nodes: new Map([
    ['root.input', { received: 100, sent: 100 }],
    ['root.pipeline.processors.0', { received: 100, sent: 60 }],
    ['root.pipeline.processors.1', { received: 60, sent: 59.5 }],
    ['root.output.broker.outputs.0', { received: 59, sent: 59 }],
    ['root.output.broker.outputs.1', { received: 30, sent: 30 }],
    ['root.dead_letter', { received: 1, sent: 1 }],
  ]),
}

test('places come in the order of the stream; outputs behind a broker are places, inner processors are not', () => {
  const list = places(flow, rates)
  assert.deepEqual(list.map((place) => place.component), ['opcua', 'tag_processor', 'switch', 'lake', 'file', 'file'])
  assert.deepEqual(list.map((place) => place.role), ['source', 'stage', 'stage', 'sink', 'sink', 'loss'])
  assert.deepEqual(list[2].children.map((child) => child.component), ['mapping'])
})

test('a stage that lets less through than it takes shows what leaves, but not mere messages under way', () => {
  const list = places(flow, rates)
  assert.equal(list[1].leaving, 40)
  assert.equal(list[2].leaving, 0)
})

test('no more leaves than the balance says is gone', () => {
  const leaving = (more) => places(flow, { ...rates, ...more })[1].leaving
  assert.equal(leaving({ filtered: 30, dropped: 20 }), 40)
  assert.equal(leaving({ filtered: 3, dropped: 2 }), 5)
  assert.equal(leaving({ filtered: 0, dropped: 0 }), 0)
})

test('the stream carries what sources bring, what stages pass on, and what outputs still to come take', () => {
  assert.deepEqual(streams(places(flow, rates)), [100, 60, 59.5, 30, 1])
  assert.deepEqual(streams([]), [])
  const two = [{ role: 'source', passed: 5 }, { role: 'source', passed: 7 }, { role: 'sink', taken: 12 }]
  assert.deepEqual(streams(two), [5, 12])
})

test('without rates there are places and no water', () => {
  const list = places(flow, undefined)
  assert.equal(list.length, 6)
  assert.deepEqual(streams(list), [0, 0, 0, 0, 0])
})

test('the drawing can be read aloud', () => {
  const words = inWords('plant', places(flow, rates), (n) => `${n}/s`)
  assert.match(words, /^Flow plant: input opcua 100\/s, then processor tag_processor 60\/s 40\/s leave here, then /)
  assert.match(words, /output file 30\/s not connected/)
  assert.equal(condition({ connected: null }).text, '')
})
