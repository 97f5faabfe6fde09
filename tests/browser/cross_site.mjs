// Tests in a real browser what pages of other sites can do to a Thalweg on this machine:
//
//     node tests/browser/cross_site.mjs http://127.0.0.1:4195 --paths '["/api/sql?q=select+1"]'
//
// A page on another port (the same site to a browser), one of another site, and one whose name was made to resolve to this
// machine send every request that a page can send without permission, to every path: images, scripts, frames, prefetches,
// forms, fetches, event streams, beacons, new windows. Addresses without a sending page, as from an e-mail or a bookmark, are
// opened too: those of --acting, which have an effect when read, in a separate window. Prints, as JSON, each request that was
// answered with a status below 400. A link to another path is not tested: it may show the status page.
//
// Needs chromium, and playwright-core in $THALWEG_NODE (default ~/.cache/thalweg/node).
import { createServer } from 'node:http'
import { parseArgs } from 'node:util'

import { launch } from './chromium.mjs'

const { values: options, positionals } = parseArgs({
  allowPositionals: true,
  options: { paths: { type: 'string' }, acting: { type: 'string', default: '[]' } },
})
const targets = positionals.map((target) => new URL(target).origin)
const paths = JSON.parse(options.paths)
const acting = JSON.parse(options.acting)

// Runs in the page. Each kind of request to each address; resolves when all of them have ended or timed out.
async function attack({ addresses }) {
  const add = (name, set) => {
    // What is hidden is requested all the same, and not painted.
    const element = Object.assign(document.createElement(name), { hidden: true }, set)
    document.body.append(element)
    return element
  }
  const form = (method, action, enctype) => {
    const frame = add('iframe', { name: `f${Math.random()}` })
    const sent = add('form', { method, action, enctype, target: frame.name })
    sent.append(Object.assign(document.createElement('input'), { name: '["stream.write","s",{"type":"t","data":{}}]', value: '' }))
    sent.submit()
  }
  for (const address of addresses) {
    add('img', { src: address, referrerPolicy: 'no-referrer' })
    add('script', { src: address })
    add('iframe', { src: address, referrerPolicy: 'unsafe-url' })
    add('link', { rel: 'prefetch', href: address })
    add('link', { rel: 'stylesheet', href: address })
    form('get', address, 'application/x-www-form-urlencoded')
    form('post', address, 'text/plain')
    const quiet = { credentials: 'include', keepalive: true }
    for (const method of ['GET', 'HEAD', 'POST']) {
      const body = method === 'POST' ? '["stream.write","s",{"type":"t","data":{}}]' : undefined
      fetch(address, { ...quiet, method, body, mode: 'no-cors' }).catch(() => {})
    }
    fetch(address, { ...quiet, referrerPolicy: 'no-referrer', mode: 'no-cors' }).catch(() => {})
    fetch(address, { method: 'DELETE' }).catch(() => {})
    fetch(address).catch(() => {})
    new EventSource(address).onerror = (event) => event.target.close()
    navigator.sendBeacon(address, '["stream.write","s",{"type":"t","data":{}}]')
    // A few at a time: a browser has few connections to one host.
    await new Promise((resolve) => setTimeout(resolve, 300))
  }
  await new Promise((resolve) => setTimeout(resolve, 2000))
}

const server = createServer((_, response) => {
  response.setHeader('content-type', 'text/html')
  response.end('<!doctype html><title>another site</title><body></body>')
})
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
const own = server.address().port

const browser = await launch([
  '--host-resolver-rules=MAP evil.test 127.0.0.1, MAP rebind.test 127.0.0.1',
  // The browser's own protection against such pages is not tested here.
  '--disable-features=BlockInsecurePrivateNetworkRequests,LocalNetworkAccessChecks,HttpsUpgrades,IsolateErrorPages',
  // A process for each of a thousand frames would cost more than all requests. What a page may send does not depend on it.
  '--disable-site-isolation-trials',
])
const answered = []
let sent = 0
let opened = 0

// The pages of one target, each with the addresses that it attacks.
function pagesOf(target) {
  const port = new URL(target).port
  return [
    { page: `http://127.0.0.1:${own}/`, to: target },
    { page: `http://localhost:${own}/`, to: `http://localhost:${port}` },
    { page: `http://evil.test:${own}/`, to: target },
    // Its own page came from elsewhere, before its name resolved to this machine.
    { page: `http://rebind.test:${port}/attack`, to: `http://rebind.test:${port}` },
  ]
}

async function attackFrom({ page: from, to }) {
  const context = await browser.newContext()
  const page = await context.newPage()
  context.on('request', (request) => {
    sent += request.url().startsWith(`${to}/`) ? 1 : 0
  })
  context.on('response', (response) => {
    const request = response.request()
    const isTarget = response.url().startsWith(`${to}/`) && !response.url().endsWith('/attack')
    if (isTarget && response.status() < 400) {
      answered.push({ from, method: request.method(), url: response.url(), kind: request.resourceType(), status: response.status() })
    }
  })
  await context.route('**/attack', (route) => route.fulfill({ contentType: 'text/html', body: '<!doctype html><body></body>' }))
  await page.goto(from)
  await page.evaluate(attack, { addresses: paths.map((path) => to + path) })
  await context.close()
}

try {
  // Each page has a context of its own, so connections of its own: none waits for another one.
  await Promise.all(targets.flatMap(pagesOf).map(attackFrom))
  for (const target of targets) {
    for (const address of acting.map((path) => target + path)) {
      const context = await browser.newContext()
      const page = await context.newPage()
      // A stream has a response and no end, and a download is not a page.
      context.on('response', (response) => {
        const request = response.request()
        if (response.url() !== address || !request.isNavigationRequest()) return
        opened += 1
        if (response.status() < 400) {
          answered.push({ from: 'address bar', method: request.method(), url: address, kind: 'navigation', status: response.status() })
        }
      })
      await page.goto(address, { waitUntil: 'commit', timeout: 10000 }).catch(() => {})
      await context.close()
    }
  }
} finally {
  await browser.close()
  server.close()
}
console.log(JSON.stringify({ sent, opened, answered }))
