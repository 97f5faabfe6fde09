// A small curve of a rate over time: points in, path and words out. The lower edge is always zero, so that a steady rate
// looks steady.

export function spark(points, width, height, spanMs) {
  const end = points.at(-1)?.at ?? 0
  const shown = points.filter((point) => end - point.at <= spanMs)
  if (shown.length < 2) return { line: '', area: '', words: 'No history yet.' }
  const rates = shown.map((point) => point.rate)
  const [lowest, highest] = [Math.min(...rates), Math.max(...rates)]
  const top = ceiling(highest)
  // The line's own width must fit inside.
  const x = (at) => round(width - 2 - ((end - at) / spanMs) * (width - 4))
  const y = (rate) => round(height - 1.5 - (rate / top) * (height - 4))
  const line = shown.map((point, i) => `${i === 0 ? 'M' : 'L'}${x(point.at)} ${y(point.rate)}`).join('')
  const area = `${line}L${x(end)} ${height}L${x(shown[0].at)} ${height}Z`
  return { line, area, lowest, highest, now: rates.at(-1), last: { x: x(end), y: y(rates.at(-1)) }, top }
}

// The next of 1, 2, 5, 10, 20, … above, so that the scale does not tremble.
export function ceiling(n) {
  if (!(n > 0)) return 1
  const power = 10 ** Math.floor(Math.log10(n))
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= n * 1.02) ?? power * 20
}

function round(n) {
  return Math.round(n * 10) / 10
}
