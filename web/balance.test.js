import assert from 'node:assert/strict'
import test from 'node:test'
import { missing, terms, verdict } from './balance.js'

const balanced = { in: 100, expanded: 0, out: 90, filtered: 5, dropped: 1, in_flight: 4, adds_up: true, filtered_by: [['deadband', 5]], dropped_by: [['late', 1]] }

test('a balance that adds up says so', () => {
  assert.equal(missing(balanced), 0)
  assert.deepEqual(verdict(balanced), { good: true, text: 'adds up' })
})

test('the page finds what does not add up by itself', () => {
  assert.deepEqual(verdict({ ...balanced, in: 1103 }), { good: false, text: '1,003 unaccounted for' })
  assert.deepEqual(verdict({ ...balanced, out: 92 }), { good: false, text: '2 too many' })
  assert.equal(verdict({ ...balanced, adds_up: false }).good, false)
})

test('the terms read as the equation, with their reasons', () => {
  const list = terms(balanced)
  assert.equal(list.map(({ sign, name }) => `${sign} ${name}`.trim()).join(' '), 'in = out + filtered + dropped + in flight')
  assert.deepEqual(list[2].reasons, [['deadband', 5]])
  assert.deepEqual(list[0].reasons, [])
  assert.deepEqual(terms({ ...balanced, expanded: 7 })[0].reasons, [['added by processors', 7]])
})
