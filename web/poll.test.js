import assert from 'node:assert/strict'
import test from 'node:test'
import { Poller } from './poll.js'

// A clock that only moves when told, and a server that answers as told.
function stage(answers) {
  const events = []
  const timers = []
  let now = 0
  const poller = new Poller({
    clock: {
      now: () => now,
      after: (ms, action) => timers.push({ at: now + ms, action }) && timers.at(-1),
      clear: (timer) => timer && timers.splice(timers.indexOf(timer), timers.includes(timer) ? 1 : 0),
    },
    ask: async () => {
      events.push(`ask ${now}`)
      const answer = answers.length > 1 ? answers.shift() : answers[0]
      if (answer instanceof Error) throw answer
      return answer
    },
    onLook: (look) => events.push(`look ${look}`),
    onLost: (error) => events.push(`lost ${error.message}`),
    onBack: () => events.push('back'),
  })
  const settle = () => new Promise((resolve) => setImmediate(resolve))
  const pass = async (ms) => {
    const end = now + ms
    for (;;) {
      const next = timers.filter((timer) => timer.at <= end).sort((a, b) => a.at - b.at)[0]
      if (!next) break
      timers.splice(timers.indexOf(next), 1)
      now = next.at
      next.action()
      await settle()
    }
    now = end
  }
  return { poller, events, pass, settle, timers }
}

test('one look per second', async () => {
  const { poller, events, pass } = stage(['a'])
  await poller.start()
  await pass(3000)
  assert.deepEqual(events.filter((event) => event.startsWith('ask')), ['ask 0', 'ask 1000', 'ask 2000', 'ask 3000'])
})

test('a hidden page asks nothing and a shown one asks at once', async () => {
  const { poller, events, pass, settle, timers } = stage(['a'])
  await poller.start()
  poller.show(false)
  await pass(60_000)
  assert.equal(timers.length, 0)
  assert.equal(events.filter((event) => event.startsWith('ask')).length, 1)
  poller.show(true)
  await settle()
  await pass(1000)
  assert.deepEqual(events.filter((event) => event.startsWith('ask')), ['ask 0', 'ask 60000', 'ask 61000'])
})

test('a server that goes away is told once, asked less often, and told when it is back', async () => {
  const gone = new Error('gone')
  const { poller, events, pass } = stage(['a', gone, gone, gone, gone, gone, 'b'])
  await poller.start()
  await pass(40_000)
  assert.equal(events.filter((event) => event === 'lost gone').length, 1)
  assert.equal(events.filter((event) => event === 'back').length, 1)
  assert.deepEqual(events.slice(events.indexOf('back'), events.indexOf('back') + 2), ['back', 'look b'])
  const asked = events.filter((event) => event.startsWith('ask')).slice(0, 7).map((event) => Number(event.slice(4)))
  assert.deepEqual(asked, [0, 1000, 2000, 4000, 8000, 13_000, 18_000])
})

test('one missed answer is not worth a word', async () => {
  const { poller, events, pass } = stage(['a', new Error('slow'), 'b'])
  await poller.start()
  await pass(3000)
  assert.ok(!events.some((event) => event.startsWith('lost') || event === 'back'))
})

test('a refusal is told at once', async () => {
  const { poller, events } = stage([Object.assign(new Error('login'), { refused: true })])
  await poller.start()
  assert.deepEqual(events, ['ask 0', 'lost login'])
})
