// Totals in, rates out. A look is one answer of /api/v1/status; rates come from two looks some seconds apart, so that the
// figures are calm. Looks of different runs of the process are never mixed.

// Rates are taken over about this long.
const WINDOW_MS = 3000

export class Rates {
  #looks = []

  // Takes the newest look; gives the rates, or `undefined` rates with the first look of a run.
  take(look) {
    const last = this.#looks.at(-1)
    if (last && (last.started_unix_ms !== look.started_unix_ms || look.uptime_ms <= last.uptime_ms)) this.#looks = []
    this.#looks.push(look)
    while (this.#looks.length > 2 && look.uptime_ms - this.#looks[1].uptime_ms >= WINDOW_MS) this.#looks.shift()
    return between(this.#looks[0], look)
  }
}

// Rates per second between two looks of one run.
export function between(before, now) {
  const seconds = (now.uptime_ms - before.uptime_ms) / 1000
  const per = (a, b) => (seconds > 0 && a !== undefined && b >= a ? (b - a) / seconds : undefined)
  const flows = now.flows.map((flow) => {
    const old = before.flows.find((other) => other.name === flow.name)
    const nodes = new Map(
      flow.nodes.map((node) => {
        const was = old?.nodes.find((other) => other.path === node.path)
        return [
          node.path,
          {
            received: per(was?.received, node.received),
            sent: per(was?.sent, node.sent),
            errors: per(was?.errors, node.errors),
          },
        ]
      }),
    )
    return {
      in: per(old?.balance.in, flow.balance.in),
      out: per(old?.balance.out, flow.balance.out),
      filtered: per(old?.balance.filtered, flow.balance.filtered),
      dropped: per(old?.balance.dropped, flow.balance.dropped),
      nodes,
    }
  })
  const tables = now.tables.map((table) =>
    per(seen(before.tables.find((other) => other.name === table.name)), seen(table)),
  )
  const entered = sum(flows.map((flow) => flow.in))
  // Receivers put what comes straight into tables, without a flow.
  const rows = sum(tables.filter((table) => table !== undefined))
  const each = (perSecond) => (entered > 0 && perSecond !== undefined ? perSecond / entered : undefined)
  const cpu = per(before.process.cpu_seconds, now.process.cpu_seconds)
  return {
    in: entered,
    out: sum(flows.map((flow) => flow.out)),
    rows: tables.every((table) => table === undefined) ? undefined : rows,
    flows,
    tables,
    cores: cpu,
    cpuNsEach: each(cpu === undefined ? undefined : cpu * 1e9),
    allocationsEach: each(per(before.process.allocations, now.process.allocations)),
    bytesEach: each(per(before.process.allocated_bytes, now.process.allocated_bytes)),
  }
}

// Rows of a table that queries see: they are committed later, all at once.
function seen(table) {
  return table && table.rows + (table.buffered_rows ?? 0)
}

export function rowsSeen(tables) {
  return tables.map(seen).reduce((a, b) => a + b, 0)
}

function sum(rates) {
  return rates.some((rate) => rate === undefined) ? undefined : rates.reduce((a, b) => a + b, 0)
}

// Rates of the last minutes out of totals over time, for the small curves.
export class Curve {
  #points = []
  #last

  constructor(keepMs = 300_000, everyMs = 1900) {
    this.keepMs = keepMs
    this.everyMs = everyMs
  }

  // `at` in milliseconds of the process's own time. What is not newer is known already; a total that fell begins anew.
  add(at, total) {
    if (this.#last && at <= this.#last.at) return
    if (this.#last && total < this.#last.total) this.clear()
    if (!this.#last) {
      this.#last = { at, total }
      return
    }
    const ms = at - this.#last.at
    if (ms < this.everyMs) return
    this.#points.push({ at, rate: ((total - this.#last.total) * 1000) / ms })
    this.#last = { at, total }
    while (this.#points.length > 1 && at - this.#points[0].at > this.keepMs) this.#points.shift()
  }

  clear() {
    this.#points = []
    this.#last = undefined
  }

  get points() {
    return this.#points
  }
}
