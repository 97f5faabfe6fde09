// The installed chromium, driven by the playwright-core in $THALWEG_NODE (default ~/.cache/thalweg/node).
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { homedir } from 'node:os'
import { join } from 'node:path'

// No network requests of its own.
const ARGUMENTS = [
  '--headless',
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
]

export function launch(more = []) {
  return playwright().chromium.launch({ executablePath: browserPath(), args: [...ARGUMENTS, ...more] })
}

function browserPath() {
  const found = [process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome']
  const path = found.find((candidate) => candidate && existsSync(candidate))
  if (!path) throw new Error('no chromium; install the package chromium or set CHROMIUM to its path')
  return path
}

function playwright() {
  const folder = process.env.THALWEG_NODE ?? join(homedir(), '.cache', 'thalweg', 'node')
  return createRequire(`${folder}/`)('playwright-core')
}
