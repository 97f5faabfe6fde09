// A box for one query: text to /api/sql, rows into a table. Only as many rows are drawn as a person would read.

import { h, put, say } from './dom.js'
import { count, duration } from './format.js'

const ROWS_SHOWN = 200
const CELL_LENGTH = 200

export class SqlView {
  #asked

  constructor(section) {
    this.section = section
    this.text = h('textarea', {
      id: 'query',
      rows: 3,
      spellcheck: false,
      autocapitalize: 'off',
      autocomplete: 'off',
      'aria-describedby': 'query-help',
      onkeydown: (event) => {
        if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
          event.preventDefault()
          void this.#ask()
        }
      },
    })
    this.button = h('button', { type: 'submit' }, 'Run')
    this.outcome = h('p', { class: 'outcome', role: 'status' })
    this.result = h('div', { class: 'result', role: 'region', 'aria-label': 'Result', tabindex: 0, hidden: true })
    const ask = (event) => {
      event.preventDefault()
      void this.#ask()
    }
    section.append(
      h(
        'form',
        { onsubmit: ask },
        h('label', { for: 'query' }, 'SQL'),
        this.text,
        h('div', { class: 'do' }, this.button, h('p', { id: 'query-help' }, 'Ctrl and Enter runs it, too. Queries only read.')),
      ),
      this.outcome,
      this.result,
    )
  }

  // Shown when the server can be asked. The first table makes the first suggestion.
  update(possible, tables) {
    put(this.section, 'hidden', !possible)
    if (this.text.value === '' && document.activeElement !== this.text && tables.length > 0) {
      this.text.value = `select * from ${identifier(tables[0].name)} limit 20`
    }
  }

  async #ask() {
    const query = this.text.value.trim()
    if (query === '') return
    this.#asked?.abort()
    const asked = (this.#asked = new AbortController())
    const began = performance.now()
    say(this.outcome, 'Asking …')
    put(this.outcome, 'data-failed', false)
    put(this.section, 'aria-busy', 'true')
    try {
      const rows = await send(query, asked.signal)
      this.#show(rows, performance.now() - began)
    } catch (error) {
      if (asked.signal.aborted) return
      put(this.result, 'hidden', true)
      put(this.outcome, 'data-failed', true)
      say(this.outcome, error.message)
    }
    put(this.section, 'aria-busy', false)
  }

  #show(rows, ms) {
    const { names, numeric } = columns(rows)
    const shown = rows.slice(0, ROWS_SHOWN)
    const many = rows.length > shown.length ? `The first ${count(shown.length)} of ${count(rows.length)} rows` : rowCount(rows)
    say(this.outcome, `${many}, in ${duration(ms * 1e6)}.`)
    put(this.result, 'hidden', rows.length === 0)
    const head = names.map((name, i) => h('th', { scope: 'col', class: numeric[i] && 'number' }, name))
    const body = shown.map((row) =>
      h('tr', {}, ...names.map((name, i) => h('td', { class: numeric[i] ? 'number' : row[name] == null && 'null' }, cell(row[name])))),
    )
    this.result.replaceChildren(h('table', {}, h('thead', {}, h('tr', {}, ...head)), h('tbody', {}, ...body)))
    this.result.scrollTo(0, 0)
  }
}

function rowCount(rows) {
  return rows.length === 1 ? '1 row' : `${count(rows.length)} rows`
}

async function send(query, signal) {
  const headers = { accept: 'application/json', 'content-type': 'text/plain; charset=utf-8' }
  const response = await fetch('api/sql', { method: 'POST', headers, body: query, signal })
  const text = await response.text()
  if (!response.ok) throw new Error(problem(text, response.status))
  return JSON.parse(text)
}

// The sentence in an error of the server: `{"error": {"code", "message"}}` from the query itself, or text from whatever
// stood in front of it.
export function problem(text, status) {
  try {
    const { error } = JSON.parse(text)
    return [error?.message, error].find((part) => typeof part === 'string' && part !== '') ?? text
  } catch {
    return text.trim() === '' ? `The server answered with status ${status}.` : text.trim()
  }
}

// Column names in the order they first appear, and which of them hold nothing but numbers.
export function columns(rows) {
  const names = [...new Set(rows.slice(0, ROWS_SHOWN).flatMap((row) => Object.keys(row)))]
  const numeric = names.map((name) => {
    const values = rows.slice(0, ROWS_SHOWN).map((row) => row[name]).filter((value) => value != null)
    return values.length > 0 && values.every((value) => typeof value === 'number' || /^-?\d{16,}$/.test(value))
  })
  return { names, numeric }
}

// A value as text; the server writes integers that JavaScript cannot hold as strings already.
export function cell(value) {
  if (value == null) return 'null'
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value)
  return text.length > CELL_LENGTH ? `${text.slice(0, CELL_LENGTH - 1)}…` : text
}

// A name that SQL takes as it is, or in quotes.
export function identifier(name) {
  return /^[a-z_][a-z0-9_]*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`
}
