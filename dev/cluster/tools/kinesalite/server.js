// Runs kinesalite on the port that it is given, with a clock that its caller moves, and corrected in two places to what AWS
// documents: see docs/kinesis.md.
//
// Each line of its input is a number: the milliseconds by which its clock is ahead from then on. It answers with a line that
// ends in that number.
'use strict'

const crypto = require('crypto')
const readline = require('readline')
const db = require('kinesalite/db')

const machine = Date.now
let ahead = 0
Date.now = () => machine() + ahead

// Before kinesalite is loaded, which takes its actions by these names.
function correct(action, corrected) {
  const file = require.resolve(`kinesalite/actions/${action}`)
  const own = require(file)
  require.cache[file].exports = (store, data, cb) => corrected(own, store, data, cb)
}

// Every record of a shard, from a number on if one is given.
function records(store, stream, shard, number, limit) {
  const first = db.shardIxToHex(shard) + (number ? `/${number}` : '')
  return store.getStreamDb(stream).createReadStream({gte: first, lt: db.shardIxToHex(shard + 1), limit})
}

function indexOf(shard) {
  return Number(shard.split('-')[1])
}

// It never answers where no record came at a time or later. Kinesis gives an iterator at what comes next.
correct('getShardIterator', (own, store, data, cb) => {
  if (data.ShardIteratorType !== 'AT_TIMESTAMP' || data.Timestamp == null || data.Timestamp * 1000 > Date.now()) {
    return own(store, data, cb)
  }
  db.lazy(records(store, data.StreamName, indexOf(data.ShardId), null, -1), cb)
    .filter(item => item.value.ApproximateArrivalTimestamp >= data.Timestamp)
    .join(found => own(store, found.length ? data : {...data, ShardIteratorType: 'LATEST'}, cb))
})

// It says that nothing follows whether or not something does.
correct('getRecords', (own, store, data, cb) => {
  own(store, data, (error, said) => {
    if (error || !said.NextShardIterator) return cb(error, said)
    const cipher = crypto.createDecipheriv('aes-256-cbc', db.ITERATOR_PWD_KEY, db.ITERATOR_PWD_IV)
    const sealed = Buffer.from(said.NextShardIterator, 'base64').subarray(8)
    const [, stream, shard, number] = Buffer.concat([cipher.update(sealed), cipher.final()]).toString().split('/')
    db.lazy(records(store, stream, indexOf(shard), number, 1), cb).join(([next]) => {
      const late = next && Date.now() - Math.round(next.value.ApproximateArrivalTimestamp * 1000)
      cb(null, next ? {...said, MillisBehindLatest: Math.max(1, late)} : said)
    })
  })
})

const [port, moment, shards] = process.argv.slice(2).map(Number)
const options = {createStreamMs: moment, deleteStreamMs: moment, updateStreamMs: moment, shardLimit: shards}
require('kinesalite')(options).listen(port, '127.0.0.1', () => console.log(`listening at ${port}`))
readline.createInterface({input: process.stdin}).on('line', line => {
  ahead = Number(line)
  console.log(`ahead by ${ahead}`)
})
