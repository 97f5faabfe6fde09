import assert from 'node:assert/strict'
import test from 'node:test'
import { cell, columns, identifier, problem } from './sql.js'

test('columns come in the order in which they first appear', () => {
  const { names, numeric } = columns([{ b: 1, a: 'x' }, { b: null, c: 2.5, a: 'y' }])
  assert.deepEqual(names, ['b', 'a', 'c'])
  assert.deepEqual(numeric, [true, false, true])
  assert.deepEqual(columns([]), { names: [], numeric: [] })
})

test('integers that JavaScript cannot hold arrive as text and still count as numbers', () => {
  assert.deepEqual(columns([{ n: '9007199254740993' }, { n: 1 }]).numeric, [true])
  assert.deepEqual(columns([{ n: '12' }]).numeric, [false])
})

test('values are shown as they are, long ones cut', () => {
  assert.equal(cell(null), 'null')
  assert.equal(cell(0), '0')
  assert.equal(cell({ a: [1] }), '{"a":[1]}')
  assert.equal(cell('x'.repeat(500)).length, 200)
})

test('the sentence of an error is found in JSON and in text', () => {
  const refused = '{"error":{"code":"sql.parse","message":"Expected: SELECT at line 1"}}'
  assert.equal(problem(refused, 400), 'Expected: SELECT at line 1')
  assert.equal(problem('{"error":"not authorized"}', 401), 'not authorized')
  assert.equal(problem('{"code":"x"}', 400), '{"code":"x"}')
  assert.equal(problem('null', 400), 'null')
  assert.equal(problem('busy\n', 429), 'busy')
  assert.equal(problem('', 504), 'The server answered with status 504.')
})

test('table names that need quotes get them', () => {
  assert.equal(identifier('tags'), 'tags')
  assert.equal(identifier('Tags "2"'), '"Tags ""2"""')
})
