// The mass balance of a flow: every message that came in has gone out, was filtered, was dropped, or is in flight.
// The page adds up for itself and does not take the server's word for it.

// What `in` exceeds the sum of the rest by; 0 when it adds up.
export function missing(balance) {
  return balance.in - (balance.out + balance.filtered + balance.dropped + balance.in_flight)
}

export function verdict(balance) {
  const off = missing(balance)
  if (off === 0 && balance.adds_up) return { good: true, text: 'adds up' }
  if (off === 0) return { good: false, text: 'reported as not adding up' }
  const n = Math.abs(off).toLocaleString('en')
  return { good: false, text: off > 0 ? `${n} unaccounted for` : `${n} too many` }
}

// The terms in the order of the equation, each with the reasons it is made of.
export function terms(balance) {
  return [
    { key: 'in', name: 'in', sign: '', value: balance.in, reasons: expanded(balance) },
    { key: 'out', name: 'out', sign: '=', value: balance.out, reasons: [] },
    { key: 'filtered', name: 'filtered', sign: '+', value: balance.filtered, reasons: balance.filtered_by ?? [] },
    { key: 'dropped', name: 'dropped', sign: '+', value: balance.dropped, reasons: balance.dropped_by ?? [] },
    { key: 'in_flight', name: 'in flight', sign: '+', value: balance.in_flight, reasons: [] },
  ]
}

function expanded(balance) {
  return balance.expanded > 0 ? [['added by processors', balance.expanded]] : []
}
