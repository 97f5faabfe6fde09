// Asks the server for a look every second while someone can see the page. When the server goes away it says so once,
// asks less often, and goes on when the server is back. Everything from outside is handed in, so tests need no browser.

const EVERY_MS = 1000
const TIMEOUT_MS = 5000
const RETRY_MS = [1000, 2000, 4000, 5000]

export class Poller {
  #timer
  #asking = false
  #failures = 0
  #told = false
  #visible = true

  // `ask(timeoutMs)` gives a look; `onLook(look)`, `onLost(error)` and `onBack()` tell what happened.
  constructor({ ask, onLook, onLost, onBack, clock }) {
    Object.assign(this, { ask, onLook, onLost, onBack, clock })
  }

  start() {
    return this.#once()
  }

  // A hidden page asks nothing; a shown one asks at once.
  show(visible) {
    if (visible === this.#visible) return
    this.#visible = visible
    this.clock.clear(this.#timer)
    if (visible) void this.#once()
  }

  async #once() {
    if (this.#asking || !this.#visible) return
    this.#asking = true
    const began = this.clock.now()
    const look = await this.ask(TIMEOUT_MS).catch((error) => this.#failed(error))
    this.#asking = false
    if (this.#visible) this.#next(this.clock.now() - began, look !== undefined)
    if (look !== undefined) this.#answered(look)
  }

  #answered(look) {
    this.#failures = 0
    if (this.#told) this.onBack()
    this.#told = false
    this.onLook(look)
  }

  // One missed answer is not worth a word, the second is; a refusal is at once.
  #failed(error) {
    this.#failures += 1
    if (this.#told || (this.#failures < 2 && !error.refused)) return
    this.#told = true
    this.onLost(error)
  }

  #next(took, answered) {
    const wait = answered ? Math.max(100, EVERY_MS - took) : RETRY_MS[Math.min(this.#failures, RETRY_MS.length) - 1]
    this.#timer = this.clock.after(wait, () => void this.#once())
  }
}

// A look from the server, or an error whose message can be shown.
export async function askServer(url, timeoutMs) {
  // Over HTTP a browser does not say that this page asks; no page of another site can add this header.
  const headers = { 'x-requested-with': 'console' }
  const response = await fetch(url, { cache: 'no-store', headers, signal: AbortSignal.timeout(timeoutMs) })
  if (response.ok) return response.json()
  const text = (await response.text()).trim()
  throw Object.assign(new Error(text || `status ${response.status}`), { refused: response.status < 500 })
}
