import assert from 'node:assert/strict'
import test from 'node:test'
import { ago, bytes, count, duration, percent, rate, short, span } from './format.js'

function table(format, cases) {
  for (const [input, expected] of cases) assert.equal(format(input), expected, `${format.name}(${input})`)
}

test('what is not known is a dash everywhere', () => {
  for (const format of [count, short, rate, bytes, duration, span, percent]) {
    for (const unknown of [undefined, null, NaN, Infinity]) assert.equal(format(unknown), '–', format.name)
  }
  assert.equal(ago(undefined, 5), 'never')
})

test('counts keep every digit, short ones keep three', () => {
  table(count, [[0, '0'], [12345678, '12,345,678'], [9007199254740991, '9,007,199,254,740,991']])
  table(short, [[0, '0'], [99999, '99,999'], [123456, '123 k'], [999600, '1.00 M'], [12345678, '12.3 M'], [148e9, '148 G']])
})

test('rates are short and never pretend', () => {
  table(rate, [[0, '0/s'], [0.004, '0/s'], [0.05, '0.05/s'], [4.25, '4.3/s'], [99.96, '100/s'], [5496.7, '5,497/s'], [1254000, '1.25 M/s']])
})

test('bytes and times take the unit that fits', () => {
  table(bytes, [[0, '0 B'], [1023, '1023 B'], [1024, '1.00 KiB'], [1 << 20, '1.00 MiB'], [190 * 1048576, '190 MiB'], [1930211904, '1.80 GiB']])
  table(duration, [[0, '0 ns'], [840, '840 ns'], [12400, '12.4 µs'], [1180000000, '1.18 s'], [90e9, '1 min 30 s']])
  table(span, [[0, '0 s'], [999, '0 s'], [65000, '1 min 5 s'], [3600000, '1 h'], [183600000, '2 d 3 h'], [86400000 + 60000, '1 d']])
  table(percent, [[0, '0 %'], [0.004, '0.4 %'], [0.21, '21 %'], [1.5, '150 %']])
})

test('how long ago is told in the largest unit', () => {
  assert.equal(ago(1000, 2000), 'just now')
  assert.equal(ago(0, 3000), '3 s ago')
  assert.equal(ago(0, 7260000), '2 h ago')
  assert.equal(ago(9000, 1000), 'just now', 'clocks that differ do not make a future')
})
