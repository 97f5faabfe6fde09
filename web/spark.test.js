import assert from 'node:assert/strict'
import test from 'node:test'
import { ceiling, spark } from './spark.js'

const points = (rates) => rates.map((rate, i) => ({ at: i * 2000, rate }))

test('too little history says so and draws nothing', () => {
  for (const few of [[], points([5])]) {
    const curve = spark(few, 100, 40, 60_000)
    assert.equal(curve.line, '')
    assert.equal(curve.words, 'No history yet.')
  }
})

test('the curve ends at the right, stands on zero, and stays inside', () => {
  const curve = spark(points([0, 50, 100]), 100, 40, 60_000)
  const drawn = [...curve.line.matchAll(/(-?[\d.]+) (-?[\d.]+)/g)].map(([, x, y]) => [Number(x), Number(y)])
  assert.equal(drawn.length, 3)
  assert.equal(drawn.at(-1)[0], 98)
  assert.ok(drawn.every(([x, y]) => x >= 0 && x <= 100 && y >= 0 && y <= 40))
  assert.ok(drawn[0][1] > drawn[1][1] && drawn[1][1] > drawn[2][1])
  assert.deepEqual([curve.lowest, curve.highest, curve.now], [0, 100, 100])
})

test('what is older than the span is left out', () => {
  const curve = spark(points([900, 1, 1, 1]), 100, 40, 4000)
  assert.equal(curve.highest, 1)
})

test('the scale moves in steps', () => {
  assert.equal(ceiling(0), 1)
  assert.equal(ceiling(4900), 5000)
  assert.equal(ceiling(5000), 10_000)
  assert.equal(ceiling(0.3), 0.5)
})
