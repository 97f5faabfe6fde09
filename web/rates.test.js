import assert from 'node:assert/strict'
import test from 'node:test'
import { Curve, Rates, between, rowsSeen } from './rates.js'

function look(uptime_ms, entered, { run = 1, cpu = 0, rows = 0 } = {}) {
  return {
    started_unix_ms: run,
    uptime_ms,
    process: { cpu_seconds: cpu, allocations: entered * 3, allocated_bytes: entered * 400 },
    flows: [
      {
        name: 'a',
        balance: { in: entered, out: entered / 2, filtered: entered / 2, dropped: 0 },
        nodes: [{ path: 'root.input', received: entered, sent: entered, errors: 0 }],
      },
    ],
    tables: [{ name: 't', rows: rows - 7, buffered_rows: 7 }],
  }
}

test('rates come from two looks', () => {
  const rates = between(look(1000, 100), look(3000, 300, { cpu: 0.5, rows: 40 }))
  assert.equal(rates.in, 100)
  assert.equal(rates.out, 50)
  assert.equal(rates.flows[0].nodes.get('root.input').sent, 100)
  assert.deepEqual(rates.tables, [20])
  assert.equal(rates.cores, 0.25)
  assert.equal(rates.cpuNsEach, 2_500_000)
  assert.equal(rates.allocationsEach, 3)
  assert.equal(rates.bytesEach, 400)
})

test('one look gives no rates, and nothing pretends to be zero', () => {
  const rates = new Rates().take(look(1000, 100))
  assert.equal(rates.in, undefined)
  assert.equal(rates.cores, undefined)
  assert.equal(rates.cpuNsEach, undefined)
})

test('rates are taken over some seconds, so one uneven second does not shake them', () => {
  const rates = new Rates()
  const seen = [0, 100, 100, 200, 300, 400].map((entered, i) => rates.take(look(i * 1000, entered)).in)
  assert.equal(seen[2], 50)
  assert.equal(Math.round(seen[4]), 67)
  assert.equal(Math.round(seen[5]), 100)
})

test('a restarted process begins anew', () => {
  const rates = new Rates()
  rates.take(look(50_000, 9000))
  assert.equal(rates.take(look(1000, 10, { run: 2 })).in, undefined)
  assert.equal(rates.take(look(2000, 20, { run: 2 })).in, 10)
})

test('a flow or table that was not there before has no rate yet', () => {
  const before = { ...look(1000, 100), flows: [], tables: [] }
  const rates = between(before, look(2000, 200))
  assert.equal(rates.flows[0].in, undefined)
  assert.equal(rates.in, undefined)
  assert.deepEqual(rates.tables, [undefined])
})

test('what receivers put into tables moves, too', () => {
  const of = (ms, rows) => ({ ...look(ms, 0), flows: [], tables: [{ name: 'logs', rows, buffered_rows: 5 }] })
  const first = between(of(1000, 10), of(1000, 10))
  assert.equal(first.rows, undefined)
  const later = between(of(1000, 10), of(2000, 210))
  assert.equal(later.in, 0)
  assert.equal(later.rows, 200)
  assert.equal(between({ ...of(1000, 10), tables: [] }, of(2000, 210)).rows, undefined, 'a new table has no rate yet')
  assert.equal(rowsSeen(of(1000, 10).tables), 15)
  assert.equal(rowsSeen([]), 0)
})

test('a curve keeps rates of the last minutes', () => {
  const curve = new Curve(10_000, 1900)
  for (let at = 0; at <= 30_000; at += 1000) curve.add(at, at / 10)
  assert.ok(curve.points.length >= 5 && curve.points.length <= 6, `${curve.points.length}`)
  assert.ok(curve.points.every((point) => point.rate === 100))
  assert.equal(curve.points.at(-1).at, 30_000)
})

test('a curve takes the server’s past and the page’s present without seeing a look twice', () => {
  const curve = new Curve()
  for (const at of [0, 2000, 4000]) curve.add(at, at)
  curve.add(3500, 3500)
  curve.add(4000, 4000)
  curve.add(6000, 6000)
  assert.deepEqual(curve.points.map((point) => point.at), [2000, 4000, 6000])
  curve.add(8000, 10)
  assert.deepEqual(curve.points, [], 'a total that fell begins anew')
})
