// The page: asks for looks, derives rates, hands both to the views, and says what state the process is in.

import { h, put, say } from './dom.js'
import { FlowView } from './flow.js'
import { rate } from './format.js'
import { Poller, askServer } from './poll.js'
import { Curve, Rates, rowsSeen } from './rates.js'
import { SqlView } from './sql.js'
import { TablesView } from './tables.js'
import { Vitals } from './vitals.js'

const element = (id) => document.getElementById(id)
const vitals = new Vitals(element('vitals'))
const tables = new TablesView(element('tables'))
const sql = new SqlView(element('sql'))
const flows = new Map()
const rates = new Rates()
const curves = { entered: new Curve(), rows: new Curve(), cpu: new Curve(), flows: new Map() }
let run
let seen
// Set when looks were missed: what happened meanwhile is fetched once from the server's history.
let behind = true

const clock = {
  now: () => performance.now(),
  after: (ms, action) => setTimeout(action, ms),
  clear: (timer) => clearTimeout(timer),
}

const poller = new Poller({
  clock,
  ask: (timeoutMs) => askServer('api/v1/status', timeoutMs),
  onLook: (look) => void show(look),
  onLost: (error) => lost(error),
  onBack: () => back(),
})

document.addEventListener('visibilitychange', () => {
  behind ||= document.hidden
  poller.show(!document.hidden)
})

async function show(look) {
  if (behind || run !== look.started_unix_ms) await recall(look)
  seen = Date.now()
  const derived = rates.take(look)
  remember(curves, look.uptime_ms, look.process.cpu_seconds, look.flows.map((flow) => flow.balance.in), look.flows)
  curves.rows.add(look.uptime_ms, rowsSeen(look.tables))
  vitals.update(look, derived, curves)
  showFlows(look, derived)
  tables.update(look.tables, derived.tables, Date.now())
  sql.update(look.sql, look.tables)
  tellState(look, derived)
  const built = look.built === '' ? '' : `, built ${look.built}`
  say(element('build'), `Thalweg ${look.version}${built}`)
  put(document.body, 'data-ready', true)
}

// Fills the curves from the server's history of this run.
async function recall(look) {
  behind = false
  run = look.started_unix_ms
  curves.entered.clear()
  curves.rows.clear()
  curves.cpu.clear()
  curves.flows.clear()
  try {
    const samples = await askServer('api/v1/status/history', 5000)
    for (const sample of samples) {
      const entered = sample.flows.slice(0, look.flows.length).map(([into]) => into)
      remember(curves, sample.uptime_ms, sample.cpu_seconds, entered, look.flows)
    }
  } catch {
    // The curves then begin now, which is all that is lost.
  }
}

function remember(into, at, cpuSeconds, entered, all) {
  if (entered.length === all.length) into.entered.add(at, entered.reduce((a, b) => a + b, 0))
  into.cpu.add(at, cpuSeconds)
  all.forEach(({ name }, i) => {
    if (entered[i] === undefined) return
    if (!into.flows.has(name)) into.flows.set(name, new Curve())
    into.flows.get(name).add(at, entered[i])
  })
}

function showFlows(look, derived) {
  put(element('no-flows'), 'hidden', look.flows.length > 0 || look.tables.length > 0)
  const names = new Set(look.flows.map((flow) => flow.name))
  for (const [name, view] of flows) {
    if (names.has(name)) continue
    view.element.remove()
    flows.delete(name)
  }
  look.flows.forEach((flow, i) => {
    if (!flows.has(flow.name)) {
      const view = new FlowView(flow.name)
      flows.set(flow.name, view)
      element('flows').append(view.element)
    }
    flows.get(flow.name).update(flow, derived.flows[i], curves.flows.get(flow.name))
  })
}

function tellState(look, derived) {
  const state = element('state')
  const ready = look.not_ready.length === 0
  const good = ready && look.degraded.length === 0
  put(state, 'data-level', good ? 'good' : 'bad')
  const moving = derived.in > 0 || derived.rows > 0
  // What has neither flows nor tables serves others: whether they come is not known here. The first look has no rates, and
  // those of the first seconds say nothing yet.
  const known = (look.flows.length > 0 ? derived.in : derived.rows) !== undefined && look.uptime_ms >= 3000
  const sentence = ready
    ? moving
      ? 'Data is flowing.'
      : known
        ? 'Ready. Nothing is flowing right now.'
        : 'Ready.'
    : moving
      ? 'Data is flowing, but not everywhere.'
      : 'Data cannot flow.'
  tell(state, [sentence, ...look.not_ready, ...look.degraded])
  document.title = `${good ? '' : '⚠ '}${rate(look.flows.length > 0 ? derived.in : derived.rows)} · Thalweg`
}

// A sentence and a list of reasons. Unchanged ones stay, so that a screen reader is not told them again.
function tell(parent, [sentence, ...reasons]) {
  const text = [sentence, ...reasons].join('\n')
  if (parent.dataset.told === text) return
  parent.dataset.told = text
  const list = reasons.length > 0 ? h('ul', {}, ...reasons.map((reason) => h('li', {}, reason))) : undefined
  parent.replaceChildren(h('p', {}, sentence), ...(list ? [list] : []))
}

function lost(error) {
  const notice = element('notice')
  const since = seen === undefined ? '' : ` The figures below are from ${new Date(seen).toLocaleTimeString()}.`
  const text = error.refused
    ? `Thalweg refuses this page: ${error.message}`
    : `No answer from Thalweg.${since} This page asks again every few seconds.`
  notice.replaceChildren(h('p', {}, text))
  put(notice, 'hidden', false)
  put(document.body, 'data-stale', true)
  flows.forEach((view) => view.rest())
  document.title = 'No answer · Thalweg'
}

function back() {
  behind = true
  put(element('notice'), 'hidden', true)
  put(document.body, 'data-stale', false)
}

void poller.start()
