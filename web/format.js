// Numbers as people read them. Pure functions: number in, text out; what is not a number becomes an en dash.

export const NOTHING = '–'

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
const one = new Intl.NumberFormat('en', { maximumFractionDigits: 1 })

function known(n) {
  return typeof n === 'number' && Number.isFinite(n)
}

// 12,345,678
export function count(n) {
  return known(n) ? whole.format(n) : NOTHING
}

// Three significant digits and a unit out of `units`, each `step` times the one before.
function scaled(n, step, units) {
  let unit = 0
  while (unit + 1 < units.length && Math.abs(n) >= step * 0.9995) {
    n /= step
    unit += 1
  }
  const digits = unit === 0 || Math.abs(n) >= 99.95 ? 0 : Math.abs(n) >= 9.995 ? 1 : 2
  return `${n.toFixed(digits)}${units[unit]}`
}

// 12.3 M, for places where the digits of a large number do not fit.
export function short(n) {
  if (!known(n)) return NOTHING
  return Math.abs(n) < 100_000 ? count(n) : scaled(n, 1000, ['', ' k', ' M', ' G', ' T'])
}

// 5,497/s · 4.2/s · 0.05/s
export function rate(n) {
  if (!known(n)) return NOTHING
  if (n >= 1_000_000) return `${scaled(n, 1000, ['', ' k', ' M', ' G', ' T'])}/s`
  if (n >= 99.95) return `${whole.format(n)}/s`
  if (n >= 0.95) return `${one.format(n)}/s`
  if (n >= 0.005) return `${n.toFixed(2)}/s`
  return '0/s'
}

// 1.8 GiB
export function bytes(n) {
  return known(n) ? scaled(n, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB', ' PiB']) : NOTHING
}

// From nanoseconds: 840 ns · 12.4 µs · 1.18 s
export function duration(ns) {
  if (!known(ns)) return NOTHING
  return ns < 60e9 ? scaled(ns, 1000, [' ns', ' µs', ' ms', ' s']) : span(ns / 1e6)
}

// From milliseconds, in the two largest units: 2 d 3 h · 4 min 5 s
export function span(ms) {
  if (!known(ms)) return NOTHING
  const seconds = Math.max(0, Math.floor(ms / 1000))
  const parts = [
    [Math.floor(seconds / 86400), 'd'],
    [Math.floor(seconds / 3600) % 24, 'h'],
    [Math.floor(seconds / 60) % 60, 'min'],
    [seconds % 60, 's'],
  ]
  const first = parts.findIndex(([n]) => n > 0)
  if (first < 0) return '0 s'
  return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => `${n} ${unit}`).join(' ')
}

// How long before `now` (both in milliseconds since 1970) something was.
export function ago(then, now) {
  if (!known(then)) return 'never'
  const ms = now - then
  if (ms < 1500) return 'just now'
  const largest = span(ms).split(' ').slice(0, 2).join(' ')
  return `${largest} ago`
}

// 21 %
export function percent(share) {
  if (!known(share)) return NOTHING
  const n = share * 100
  return n > 0 && n < 9.95 ? `${n.toFixed(1)} %` : `${Math.round(n)} %`
}
