// The lake's tables: what is in them and whether they keep up. A table for the eye on a wide screen; on a narrow one
// each row becomes a card, so the roles are written out to keep it a table for assistive technology.

import { h, put, reconcile, say } from './dom.js'
import { ago, bytes, count, rate } from './format.js'

const COLUMNS = [
  ['Table', 'name'],
  ['Rows', 'rows'],
  ['Growing by', 'growth'],
  ['Not yet committed', 'buffered'],
  ['Files', 'files'],
  ['Size', 'size'],
  ['Version', 'version'],
  ['Last commit', 'commit'],
]

export class TablesView {
  constructor(section) {
    this.section = section
    this.body = h('tbody', { role: 'rowgroup' })
    const head = COLUMNS.map(([title, key]) => h('th', { scope: 'col', role: 'columnheader', class: key }, title))
    section.append(
      h(
        'table',
        { role: 'table', 'aria-labelledby': 'tables-title' },
        h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, ...head)),
        this.body,
      ),
    )
  }

  // `now` is the time of the server's clock as far as the page knows it.
  update(tables, rates, now) {
    put(this.section, 'hidden', tables.length === 0)
    reconcile(
      this.body,
      tables.map((table, i) => ({ ...table, growth: rates[i] })),
      (table) => table.name,
      row,
      (element, table) => updateRow(element, table, now),
    )
  }
}

function row() {
  const cells = COLUMNS.map(([title, key]) =>
    key === 'name'
      ? h('th', { scope: 'row', role: 'rowheader', class: key }, h('span', {}), h('p', { class: 'failed', hidden: true }))
      : h('td', { role: 'cell', class: key, 'data-title': title }),
  )
  return h('tr', { role: 'row' }, ...cells)
}

function updateRow(element, table, now) {
  const cell = (key, text) => say(element.querySelector(`.${key}`), text)
  say(element.querySelector('.name span'), table.name)
  const failed = element.querySelector('.failed')
  say(failed, table.failed ?? '')
  put(failed, 'hidden', !table.failed)
  cell('rows', count(table.rows))
  cell('growth', rate(table.growth))
  cell('buffered', count(table.buffered_rows))
  cell('files', count(table.files))
  cell('size', bytes(table.bytes))
  cell('version', count(table.version))
  cell('commit', ago(table.last_commit_unix_ms ?? undefined, now))
}
