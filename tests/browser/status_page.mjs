// Checks the status page in a real browser against a running Thalweg:
//
//     node tests/browser/status_page.mjs http://127.0.0.1:4195/ [--screenshots FOLDER] [--sql QUERY] [--token TOKEN]
//
// Checks on a phone (360 x 740) and on a wide screen (1280 x 800), light and dark: the graph of every flow is drawn, rates
// and totals move when data flows, the displayed balance adds up, nothing scrolls sideways, every text has
// enough contrast, everything can be reached by keyboard, nothing is fetched from elsewhere, and the browser's console
// stays silent. With --sql, the query must return rows, and a wrong one an error. Exits with 1 and a list of failures.
//
// Needs chromium, and playwright-core in $THALWEG_NODE (default ~/.cache/thalweg/node).
import { mkdirSync } from 'node:fs'
import { join } from 'node:path'
import { parseArgs } from 'node:util'

import { launch } from './chromium.mjs'

const SCREENS = [
  { name: 'phone', width: 360, height: 740 },
  { name: 'wide', width: 1280, height: 800 },
]
const SCHEMES = ['light', 'dark']
// WCAG AA: for text, for large text, for shapes.
const CONTRAST = 4.5
const CONTRAST_LARGE = 3

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { screenshots: { type: 'string' }, sql: { type: 'string' }, token: { type: 'string' } },
})
const base = new URL(positionals[0] ?? 'http://127.0.0.1:4195/')
const wrong = []

function expect(good, sentence) {
  if (!good) wrong.push(sentence)
}

// Colours, contrasts and texts of everything visible. Runs in the page.
function inspect({ contrast, contrastLarge }) {
  const parse = (text) => {
    const parts = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0]
    return { r: parts[0], g: parts[1], b: parts[2], a: parts[3] ?? 1 }
  }
  const over = (top, under) => ({
    r: top.r * top.a + under.r * (1 - top.a),
    g: top.g * top.a + under.g * (1 - top.a),
    b: top.b * top.a + under.b * (1 - top.a),
    a: 1,
  })
  const light = ({ r, g, b }) => {
    const [x, y, z] = [r, g, b].map((n) => (n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4))
    return 0.2126 * x + 0.7152 * y + 0.0722 * z
  }
  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x)
    return (high + 0.05) / (low + 0.05)
  }
  const ground = (element) => {
    const grounds = []
    for (let at = element; at; at = at.parentElement) grounds.push(parse(getComputedStyle(at).backgroundColor))
    return grounds.reduceRight((under, top) => over(top, under), { r: 255, g: 255, b: 255, a: 1 })
  }
  const seen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && element.getClientRects().length > 0
  const poor = []
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement
    if (walker.currentNode.textContent.trim() === '' || !seen(element) || element.closest('script, style, .unseen, .skip')) continue
    const style = getComputedStyle(element)
    const colour = parse(element instanceof SVGElement ? style.fill : style.color)
    const size = parseFloat(style.fontSize)
    const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700)
    const found = ratio(over(colour, ground(element)), ground(element))
    if (found < (large ? contrastLarge : contrast)) poor.push(`"${element.textContent.trim().slice(0, 40)}" ${found.toFixed(2)}`)
  }
  const water = [...document.querySelectorAll('.river .water, .river .arm')]
    .filter((shape) => !shape.closest('.bed'))
    .map((shape) => ratio(parse(getComputedStyle(shape).getPropertyValue(shape.matches('.water') ? 'fill' : 'stroke')), ground(shape)))
  return {
    poor: [...new Set(poor)],
    water: water.length > 0 ? Math.min(...water) : undefined,
    sideways: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    outside: [...document.querySelectorAll('main *')]
      .filter((element) => seen(element) && !element.closest('.result, svg') && element.getBoundingClientRect().right > innerWidth + 1)
      .map((element) => element.className || element.tagName),
    unnamedImages: [...document.querySelectorAll('img:not([alt]), svg[role=img]:not([aria-label])')].length,
    headings: [...document.querySelectorAll('h1, h2, h3')].map((heading) => heading.textContent),
    title: document.title,
  }
}

// The figures of every flow as the page shows them. Runs in the page.
function figures() {
  const number = (text) => Number(text.replaceAll(',', ''))
  return [...document.querySelectorAll('.flow')].map((flow) => ({
    name: flow.getAttribute('aria-label'),
    terms: Object.fromEntries([...flow.querySelectorAll('[data-term]')].map((term) => [term.dataset.term, number(term.textContent)])),
    verdict: flow.querySelector('.verdict').textContent,
    places: [...flow.querySelectorAll('.place')].map((place) => ({
      name: place.querySelector('h3').textContent,
      role: place.dataset.role,
      rate: place.querySelector('.figure strong').textContent,
      box: place.getBoundingClientRect().toJSON(),
    })),
    bed: flow.querySelectorAll('.river .bed path[d^=M]').length,
    water: flow.querySelector('.river .water')?.getAttribute('d') ?? '',
    drawing: flow.querySelector('.river').getBoundingClientRect().toJSON(),
    words: flow.querySelector('.river').getAttribute('aria-label') ?? '',
  }))
}

function checkFlows(where, before, after) {
  expect(after.length > 0, `${where}: no flow is drawn`)
  for (const flow of after) {
    const at = `${where}: ${flow.name}`
    const { in: into, out, filtered, dropped, in_flight: inFlight } = flow.terms
    expect(into === out + filtered + dropped + inFlight, `${at}: ${into} is not ${out} + ${filtered} + ${dropped} + ${inFlight}`)
    expect(flow.verdict === 'adds up', `${at}: the balance is said to be "${flow.verdict}"`)
    const roles = flow.places.map((place) => place.role)
    expect(roles.includes('source') && roles.includes('sink'), `${at}: the graph has ${roles.join(', ')}`)
    expect(flow.bed > 0 && flow.drawing.width > 20 && flow.drawing.height > 20, `${at}: the river is not drawn`)
    expect(flow.places.every((place) => flow.words.includes(place.name)), `${at}: the drawing's words are "${flow.words}"`)
    const old = before.find((other) => other.name === flow.name)
    if (old && into > old.terms.in) {
      expect(flow.water !== '', `${at}: messages flow but no water is drawn`)
      expect(flow.places.some((place) => /[1-9]/.test(place.rate)), `${at}: totals move but no place shows a rate`)
    }
  }
}

// Focusable elements, in order, and whether each shows its focus.
async function checkKeyboard(page, where) {
  await page.evaluate(() => document.activeElement?.blur())
  const reached = []
  for (let i = 0; i < 60; i += 1) {
    await page.keyboard.press('Tab')
    const at = await page.evaluate(() => {
      const element = document.activeElement
      if (!element || element === document.body) return undefined
      const style = getComputedStyle(element)
      return { name: element.id || element.textContent.trim().slice(0, 30), shown: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 }
    })
    if (!at) break
    reached.push(at)
    expect(at.shown, `${where}: the focus on "${at.name}" is not seen`)
  }
  expect(reached.length >= 4, `${where}: only ${reached.length} things can be reached by keyboard`)
  expect(reached[0]?.name.startsWith('Skip'), `${where}: the first stop is "${reached[0]?.name}"`)
}

async function checkSql(page, where, query) {
  await page.fill('#query', query)
  await page.locator('#query').press('Control+Enter')
  await page.waitForSelector('.sql:not([aria-busy]) .outcome:not(:empty)', { timeout: 60_000 })
  const rows = await page.locator('.result tbody tr').count()
  expect(rows > 0, `${where}: "${query}" gave "${await page.locator('.outcome').textContent()}"`)
  await page.fill('#query', 'selec nonsense')
  await page.locator('.sql button').click()
  await page.waitForSelector('.outcome[data-failed]', { timeout: 60_000 })
  const sentence = await page.locator('.outcome').textContent()
  expect(sentence.length > 10 && !/[{}]/.test(sentence), `${where}: a wrong query gives "${sentence}"`)
}

async function visit(browser, screen, scheme) {
  const where = `${screen.name}, ${scheme}`
  const headers = options.token ? { authorization: `Bearer ${options.token}` } : {}
  const context = await browser.newContext({
    viewport: { width: screen.width, height: screen.height },
    colorScheme: scheme,
    extraHTTPHeaders: headers,
    ignoreHTTPSErrors: true,
  })
  const page = await context.newPage()
  let quiet = true
  page.on('console', (message) => quiet && ['error', 'warning'].includes(message.type()) && wrong.push(`${where}: console: ${message.text()}`))
  page.on('pageerror', (error) => wrong.push(`${where}: ${error.message}`))
  page.on('request', (request) => expect(new URL(request.url()).origin === base.origin, `${where}: fetches ${request.url()}`))
  await page.goto(base.href)
  await page.waitForSelector('body[data-ready]', { timeout: 20_000 })
  const first = await page.evaluate(figures)
  await page.waitForFunction(moved, first.map((flow) => flow.terms.in), { timeout: 15_000 }).catch(() => {})
  // Rates appear one refresh after the first.
  await page.waitForTimeout(2500)
  const later = await page.evaluate(figures)
  checkFlows(where, first, later)
  const found = await page.evaluate(inspect, { contrast: CONTRAST, contrastLarge: CONTRAST_LARGE })
  expect(found.poor.length === 0, `${where}: too little contrast: ${found.poor.join('; ')}`)
  expect((found.water ?? 99) >= CONTRAST_LARGE, `${where}: the water's contrast is ${found.water?.toFixed(2)}`)
  expect(found.sideways <= 0, `${where}: the page scrolls sideways by ${found.sideways} px`)
  expect(found.outside.length === 0, `${where}: outside the screen: ${[...new Set(found.outside)].join(', ')}`)
  expect(found.unnamedImages === 0, `${where}: ${found.unnamedImages} images have no words`)
  expect(/Thalweg$/.test(found.title), `${where}: the title is "${found.title}"`)
  if (options.screenshots) {
    mkdirSync(options.screenshots, { recursive: true })
    await page.screenshot({ path: join(options.screenshots, `${screen.name}-${scheme}.png`), fullPage: true })
  }
  await checkKeyboard(page, where)
  if (options.sql) {
    // A refused query is an error in the browser's console, which is expected here.
    quiet = false
    await checkSql(page, where, options.sql)
  }
  await context.close()
  const moving = later.filter((flow, i) => flow.terms.in > (first[i]?.terms.in ?? 0)).length
  console.log(`${where}: ${later.length} flows, ${moving} of them moving, ${later.map((flow) => flow.places.length).join(' and ')} places`)
}

// Whether any flow accepted messages since. Runs in the page.
function moved(before) {
  const terms = [...document.querySelectorAll('[data-term=in]')].map((term) => Number(term.textContent.replaceAll(',', '')))
  return terms.some((n, i) => n > (before[i] ?? 0))
}

const browser = await launch()
try {
  for (const screen of SCREENS) for (const scheme of SCHEMES) await visit(browser, screen, scheme)
} finally {
  await browser.close()
}
for (const sentence of wrong) console.error(`wrong: ${sentence}`)
console.log(wrong.length === 0 ? 'the status page is as it should be' : `${wrong.length} things are wrong`)
process.exitCode = wrong.length === 0 ? 0 : 1
